"""The methods by name. Each is one file with both halves, the server's and the client's."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from subflot.algorithms.adaptivefl import AdaptiveFL
from subflot.algorithms.base import Algorithm
from subflot.algorithms.depthfl import DepthFL
from subflot.algorithms.fedamp import FedAMP, FedAMPSub
from subflot.algorithms.fedavg import FedAvg, FedAvgFull
from subflot.algorithms.fedbn import FedBN, FedBNSub
from subflot.algorithms.feddrop import FedDrop
from subflot.algorithms.feddse import FedDSE
from subflot.algorithms.fedfomo import FedFomo, FedFomoSub
from subflot.algorithms.fedma import FedMA
from subflot.algorithms.fedmp import FedMP
from subflot.algorithms.fedproto import FedProto
from subflot.algorithms.fedprox import FedProx
from subflot.algorithms.fedrolex import FedRolex
from subflot.algorithms.fjord import FjORD
from subflot.algorithms.flado import Flado
from subflot.algorithms.flexfl import FlexFL
from subflot.algorithms.heterofl import HeteroFL
from subflot.algorithms.lgfedavg import LGFedAvg, LGFedAvgSub
from subflot.algorithms.local import Local
from subflot.algorithms.perfedavg import PerFedAvg, PerFedAvgSub
from subflot.algorithms.pfedme import PFedMe, PFedMeSub
from subflot.algorithms.scalefl import ScaleFL
from subflot.algorithms.subflot import SubFLOT, SubFLOTPartial
from subflot.algorithms.subflot_plus import SubFLOTPlus
from subflot.errors import SubflotError, UnknownName

__all__ = ["ALGORITHMS", "Algorithm", "make"]

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
        *(SubFLOTPlus, SubFLOT, SubFLOTPartial, FedAvg, FedAvgFull, FedProx),
        *(HeteroFL, FjORD, FedRolex, FedDrop, FedMP, FedDSE, AdaptiveFL, FlexFL, Flado),
        FedMA,
        *(DepthFL, ScaleFL),
        *(PerFedAvg, PerFedAvgSub, PFedMe, PFedMeSub),
        *(FedAMP, FedAMPSub, FedFomo, FedFomoSub),
        *(FedBN, FedBNSub, LGFedAvg, LGFedAvgSub, FedProto),
        Local,
    )
}


def make(name: str, **settings: Any) -> Algorithm:
    """Return a method with its settings; an unknown name is an error that offers the nearest.

    Example:
        >>> make("subflot", global_share=0.3).global_share
        0.3
    """
    if name not in ALGORITHMS:
        raise UnknownName("algorithm", name, ALGORITHMS, "subflot algorithms")
    kind = ALGORITHMS[name]
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for setting, value in settings.items():
        if setting not in known:
            raise UnknownName(f"setting of {name}", setting, known, "subflot algorithms")
        if isinstance(value, str):
            _check_word(setting, value, hints[setting])
    return kind(**settings)


def _check_word(setting: str, value: str, hint: Any) -> None:
    """Refuse a word that a setting does not have; where numbers have words, the method checks."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UnknownName(setting, value, get_args(hint), "subflot algorithms")
    elif not any(get_origin(one) is Literal for one in get_args(hint)):
        raise SubflotError(
            f"{setting} is {value!r}", hint="a number; `subflot algorithms` says more"
        )
