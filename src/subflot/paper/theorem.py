"""The bound of Theorem 1, term by term as printed.

    F(W^T) - F*  <=  gamma^T (F(W^0) - F*) + error / mu,    gamma = 1 - mu eta E / 2

The printed proof has slips, so a measurement is all that stands behind the bound here:

- Lemma 1 uses (1 - 2a)^2 <= 1 - 4a, which is false for a > 0; (1 - 2a)^2 <= 1 - 2a holds for a in
  [0, 1/2] and is enough for the lemma. It also drops the product of drift and gradient.
- With eta <= 1 / (8 E) the gradient's factor (1 - eta E) / 2 is said to be at most -1/4; it is
  positive.
- Its last lines set the error to 2 / (eta E) times the bracket that the theorem prints as the
  error. `proof_bound` has that factor; it is the weaker claim.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What the theorem depends on, in its notation; distances and norms are squared."""

    smoothness: float
    """L."""
    convexity: float
    """mu."""
    variance: float
    """sigma^2, of a client's gradient on a batch."""
    gradient: float
    """G^2, of a client's gradient on all its examples."""
    delta_ot: float
    """delta_OT^2, how far aggregation moves the clients' models."""
    delta_p: float
    """delta_P^2, how far the submodels lie from the global model."""
    steps: int
    """E, of a client in a round."""
    learning_rate: float
    """eta."""
    penalty_weight: float
    """lambda."""
    max_rate: float
    """rho_max, the largest pruning rate."""

    @property
    def contraction(self) -> float:
        """Gamma, what is left of the gap after a round."""
        return 1 - self.convexity * self.learning_rate * self.steps / 2


def largest_step(smoothness: float, steps: int, penalty_weight: float, max_rate: float) -> float:
    """Return the largest learning rate that the theorem allows."""
    return min(1 / (8 * smoothness * steps), 1 / (4 * penalty_weight * max_rate))


def error_terms(c: Constants) -> dict[str, float]:
    """Return the six terms of the asymptotic error, by what they come from."""
    pull = c.penalty_weight * c.max_rate
    step = c.steps * c.learning_rate
    return {
        "variance": c.smoothness * step * c.variance / 2,
        "gradient": 4 * c.smoothness**2 * c.steps * step * c.gradient,
        "drift": 16 * c.smoothness * step / pull * (c.variance + c.gradient),
        "delta_ot": 5 / 2 * c.delta_ot,
        "delta_p": 4 * c.smoothness * c.delta_p,
        "penalty": 4 * c.smoothness * step**2 * pull**2 * c.delta_p,
    }


def bound(c: Constants, first_gap: float, rounds: int) -> float:
    """Return what the theorem says of the gap after so many rounds."""
    return c.contraction**rounds * first_gap + sum(error_terms(c).values()) / c.convexity


def proof_bound(c: Constants, first_gap: float, rounds: int) -> float:
    """Return what the last lines of the proof say of it, with the error of one round summed up."""
    error = sum(error_terms(c).values()) * 2 / (c.learning_rate * c.steps)
    return c.contraction**rounds * first_gap + error / c.convexity
