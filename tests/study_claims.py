"""The claims of the study, of surgical fine-tuning and of TaLoS by plain arithmetic, for tests/test_verdicts.py."""

from tests.naive import CELL, PAIR, Claim, Sample, above, cells, gain

SIZES = {0.001: "0.10 %", 0.01: "1.00 %", 0.1: "10.00 %"}
REGIONS = {
    "learned": "the learned",
    "grown": "the grown",
    "attribution": "the attribution",
    "movement": "what moved most",
}
REGIONS |= {"fish": "the FISH mask", "bias": "biases", "random": "a random"}
COMPARED = [("learned", "movement"), ("grown", "movement"), ("attribution", "movement"), ("grown", "learned")]
COMPARED += [("movement", "random"), ("learned", "fish"), ("fish", "random"), ("learned", "bias")]


def study(read):
    for part in (localizers, other_models, out_of_distribution, overlaps):
        yield from part(read)


def models(read, variant, measure="score", where="id", **axes):
    return cells(read("study/anchor"), measure, variant=variant, where=where, **axes)


def baselines(read):
    return models(read, "pretrained"), models(read, "pretrained", "constant")


def grafts(read, size, measure="score", where="id", localizer="learned"):
    found = cells(read("study/sweep"), measure, localizer=localizer, sparsity=size, where=where)
    return found.reindex(own(read)[size]) if localizer == "learned" else found


def own(read):
    """Cells by size in which the learned mask did not give way to movement's."""
    costs = read("study/cost").query("localizer == 'learned' and kept == 'learned'")
    return {size: costs[costs.sparsity == size].set_index(CELL).index for size in SIZES}


def alone(read, measure="score", where="id", readout="retrain", localizer="learned"):
    return cells(read("study/readout"), measure, readout=readout, localizer=localizer, where=where)


def gained(read):
    return [above(models(read, "finetuned"), *baselines(read))]


def localizers(read):
    for size, of in SIZES.items():
        score = {name: grafts(read, size, localizer=name) for name in REGIONS}
        for first, second in COMPARED:
            words = f"Grafts on {REGIONS[first]} | score higher than on {REGIONS[second]} | at {of}"
            yield Claim(words, score[first] - score[second], 0, gained(read))


def other_models(read):
    given, finetuned, pretrained = gained(read), models(read, "finetuned"), models(read, "pretrained")
    labels = read("study/tasks").set_index("task").labels
    for size, of in SIZES.items():
        score, ece = grafts(read, size), grafts(read, size, "ece")
        yield Claim(f"keeps 95 % of the fine | of {of}", score / finetuned, 0.95, given)
        chosen = cells(read("study/sweep"), localizer="learned", sparsity=size, where="id") / finetuned
        for kind, those in (("two", labels == 2), ("more", labels > 2)):
            kept = chosen[those[chosen.index.get_level_values("task")].to_numpy()]
            yield Claim(f"tasks of {kind} labels | of {of}", kept, 0.95, given, family="kinds")
        yield Claim(f"brings 95 % | of {of}", gain(score, pretrained, finetuned), 0.95, given)
        yield Claim(f"The fine-tuned model's ECE | of {of}", models(read, "finetuned", "ece") - ece, 0, given)
        yield Claim(f"parameter-efficient | of {of}", cells(read("study/peft"), "ece", where="id") - ece, 0, given)
    for share, of in ((0.5, "50.00 %"), (0.9, "90.00 %")):
        yield Claim(f"set to 0 | of {of}", grafts(read, 0.001) - models(read, "pruned", sparsity=share), 0, given)
    yield Claim("of 1.00 % trained alone scores higher", alone(read) - grafts(read, 0.01), 0, given)
    rows = read("study/paradigm").query("where == 'id'")
    tuned = {name: cells(rows, paradigm=name, variant="finetuned") for name in ("sgd", "adamw", "adamw_l1")}
    for size, of in [*SIZES.items()][:2]:
        learned = rows[rows.kept != "movement"]
        kept = {name: cells(learned, paradigm=name, variant="grafted", sparsity=size) / tuned[name] for name in tuned}
        controls = [above(each, *baselines(read)) for each in tuned.values()]
        yield Claim(f"after SGD than | of {of}", kept["sgd"] - kept["adamw"], 0, controls)
        yield Claim(f"with an l1 penalty | of {of}", kept["adamw_l1"] - kept["adamw"], 0, controls)
    lost = models(read, "finetuned", "accuracy", "train") - models(read, "finetuned", "accuracy")
    grafted = [alone(read, "accuracy", where, "graft") for where in ("train", "id")]
    yield Claim("gap in accuracy", lost - (grafted[0] - grafted[1]).reindex(own(read)[0.01]), 0, given)
    reached = []
    for axes in ({"variant": "checkpoint"}, {"variant": "grafted", "sparsity": 0.01}):
        course = read("study/trajectory").query("kept != 'movement'")
        steps = cells(course, "score", [*CELL, "step"], where="id", **axes).unstack()
        best = steps.max(axis=1) - pretrained
        enough = steps.sub(pretrained, axis=0).ge(0.95 * best - 1e-9, axis=0)
        reached.append(enough[best > 0.0499].idxmax(axis=1) / steps.columns.max())
    yield Claim("at an earlier step", reached[0] - reached[1], 0, given)


def out_of_distribution(read):
    given, biases = gained(read), alone(read, where="ood", localizer="bias")
    for size, of in SIZES.items():
        score = grafts(read, size, where="ood")
        yield Claim(
            f"higher than the fine-tuned model | of {of}", score - models(read, "finetuned", where="ood"), 0, given
        )
        yield Claim(f"biases trained alone | of {of}", score - biases, 0, given)
    yield Claim("its region trained alone", grafts(read, 0.01, where="ood") - alone(read, where="ood"), 0, given)


def overlaps(read):
    again, other, places = (
        read(f"study/{name}").query("localizer == 'learned'")
        for name in ("seed_overlap", "task_overlap", "composition")
    )
    both, fish = read("study/localizer_overlap"), {}
    for size, of in SIZES.items():
        cell = own(read)[size]
        fish[size] = cells(both, "iou", first="learned", second="fish", sparsity=size).reindex(cell)
        pairs = other[other.sparsity == size].set_index([*PAIR, "seed"])
        pairs = pairs[[{(one, seed), (two, seed)} <= {*cell} for one, two, seed in pairs.index]]
        yield Claim(f"and FISH masks of | of {of}", fish[size], 0.1, below=True)
        yield Claim(f"share more than by chance | of {of}", Sample(pairs.overlap - pairs.chance, PAIR))
        if len(again):
            seeds = cells(again, "overlap", ["task"], sparsity=size)
            mean = sum(pairs.index.get_level_values(level).map(seeds).to_numpy() for level in PAIR) / 2
            yield Claim(f"shares more with its own | of {of}", Sample(mean - pairs.overlap, PAIR))
    yield Claim("overlap less the larger", fish[0.001] - fish[0.1])
    kinds = places.kind.isin(["attention value", "feed-forward first", "LayerNorm"]) & (places.sparsity == 0.001)
    sums = places[kinds].groupby(CELL)[["share", "chance"]].sum().reindex(own(read)[0.001])
    yield Claim("regions lie in values", sums.share - sums.chance)


def surgical(read):
    runs, steps, fim, regions = (read(f"surgical/{name}") for name in ("surgery", "robustness", "fim", "regions"))
    score = runs.pivot(index=CELL, columns="selection", values="score")
    given = [above(score["all"], score["none"], cells(runs, "constant"))]
    yield Claim("keeps 95 % of the score of all", score.top_1 / score["all"], 0.95, given)
    yield Claim("as many with the lowest scores", score.top_1 - score.bottom_1, 0, given)
    if fim.layer.nunique() >= 4:  # of two layers there are two rankings
        dev, lowest = (
            steps.pivot(index=CELL, columns="step", values="dev_accuracy"),
            steps[steps.step > 0].groupby(CELL),
        )
        learned = [dev[dev.columns.max()] - dev[0]]
        yield Claim("ranking of layers keeps", lowest.spearman.min(), 0.9, learned, told=float)
    fim = fim.query("target == 'label_logit' and aggregation == 'sum_fro' and examples == 24")
    top = fim.pivot(index=CELL, columns="layer", values="score").idxmax(axis=1)
    inside = regions[regions.layer == regions.set_index(CELL).index.map(top)].set_index(CELL)
    yield Claim("More of the learned graft than by chance", inside.share - inside.chance)


def talos(read):
    rows, left, pruned = read("talos/addition"), read("talos/negation").query("not weak_control"), read("talos/pruned")
    added, kept = (rows.pivot(index=CELL, columns="method", values=name) for name in ("accuracy", "by_own"))
    gains = {}
    for method, part in rows.set_index(CELL).groupby("method"):
        gains[method] = above(part.single, part[["pretrained", "majority"]])
    full, both = [gains["full"]], [gains["full_matched"], gains["talos"]]
    # several targets may have the same control
    starts = left.groupby(["control", "seed"])[["control_zero_shot", "control_majority"]].first().rename_axis(CELL)
    control = starts.control_zero_shot - starts.control_majority
    left = left.pivot(index=CELL, columns="method", values="accuracy")
    yield Claim("Added, the vectors of TaLoS | than those of full", kept.talos - kept.full_matched, 0, both)
    yield Claim("Added, the vectors of TaLoS | than linearised", kept.talos - kept.linear, 0, both)
    yield Claim("Added, the vectors of TaLoS | than those of a random", kept.talos - kept.random, 0, both)
    yield Claim("takes more | the vector of TaLoS takes", left.full_matched - left.talos, 0, [*both, control])
    yield Claim("takes more | a linearised vector", left.talos - left.linear, 0, [*both, control])
    yield Claim("Added, grafts | they come from", added.graft - added.full, 0, full, family="grafts")
    yield Claim(
        "Added, grafts | the vectors of TaLoS", added.graft - added.talos, 0, [*full, gains["talos"]], family="grafts"
    )
    yield Claim("Negated, a graft", left.full - left.graft, 0, [*full, control], family="grafts")
    far = (
        read("talos/localization")
        .query("trained_on != task")
        .pivot(index=["trained_on", *CELL], columns="method", values="ratio")
    )
    nearer = (far.full_matched - 1).abs() - (far.talos - 1).abs()
    yield Claim("leaves the accuracy", Sample(nearer, ["trained_on", "task"]), 0, both)
    # where alpha is searched
    grid = read("talos/disentangle").query("abs(alpha1) <= 1 and abs(alpha2) <= 1")
    grid = grid.assign(**{name: grid.pair.str.split("+").str[place] for place, name in enumerate(PAIR)})
    error = grid.groupby([*PAIR, "seed", "method"])["mean"].mean().unstack()
    yield Claim("changes fewer predictions", Sample(error.full_matched - error.talos, PAIR), 0, both)
    start, pair = pruned.groupby(CELL)[["pretrained", "majority"]].first(), ["scored_on", "task"]
    beats = [start.pretrained - start.majority]
    kept = pruned.pivot(index=[*pair, "seed"], columns="kind", values="ratio")
    yield Claim("keeps 95 % of its zero-shot", Sample(kept.least, pair), 0.95, beats, family="pruning")
    yield Claim("Setting the least", Sample(kept.least - kept.random, pair), 0, beats, family="pruning")
    yield Claim("Setting random", Sample(kept.random - kept.most, pair), 0, beats, family="pruning")
    alike = read("talos/task_iou").query("method == 'talos'").set_index([*PAIR, "seed"])
    yield Claim("of two tasks are more alike", Sample(alike.iou - alike.chance, PAIR))
    tensors = read("talos/tensors").query("method == 'talos'")
    queries = tensors[tensors.kind.isin(["attention query", "attention key"])]
    shares = [
        sums.selected / sums.parameters
        for sums in (part.groupby(CELL).sum(numeric_only=True) for part in (queries, tensors))
    ]
    yield Claim("query and key", shares[0] - shares[1])
