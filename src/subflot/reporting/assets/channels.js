// The channel map of each model: spaces, what is left of them at each rate, and the tensors.

function showChannels(page, runs) {
  const models = page.models.filter((_, i) => runs.some((run) => run.model === i));
  fill("channels", ...models.flatMap((model) => [
    make("h3", {}, `${model.model} on ${model.data}`),
    spaceTable(model),
    make("details", {},
      make("summary", {}, `${model.tensors.length} tensors and their axes`), tensorTable(model)),
  ]));
}

function spaceTable({ model, rates, spaces }) {
  const left = rates.map((rate, i) => ({ title: `at rate ${rate}`, value: (space) => space.kept[i] }));
  return table(`Channel spaces of ${model}`, [
    { title: "space", isText: true, value: (space) => space.name },
    { title: "channels", bar: true, value: (space) => space.channels },
    ...left.filter((_, i) => rates[i] > 0),
    { title: "axes it cuts", value: (space) => space.num_tensors },
    { title: "cut?", isText: true, value: (space) => (space.frozen ? `no: ${space.frozen}` : "yes") },
  ], spaces);
}

function tensorTable({ model, tensors }) {
  return table(`Tensors of ${model}`, [
    { title: "tensor", isText: true, value: ([name]) => name },
    { title: "shape", isText: true, value: ([, shape]) => shape },
    { title: "axes", isText: true, value: ([, , axes]) => axes },
  ], tensors, { isTall: true });
}
