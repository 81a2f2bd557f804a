"""minigpt: attention from averaging to a trained small GPT.

Read the files in this order; each imports only files above it.

    terminal, strict_yaml, strict_json  text for a terminal; YAML -> a tree; JSON of the right form
    config                              a tree -> frozen dataclasses
    folder                              names, locks, links, and files that are whole or not there
    waiting, process                    what takes long says so, and can be stopped; one process starts another
    learn_pieces                        the process that learns the pieces of byte-pair encoding
    tokenizer, stories, corpus, dataset text -> ids -> batches
    cache, position, norm               what attention remembers, how it knows where, how it stays in scale
    attention/ladder                    attention as plain functions: start here
    attention/base, average, ...        the contract, and one kind a file
    model                               the GPT
    machine, memory, threads            freed memory is kept; what would not fit is refused; how threads wait
    decoding, sampling, trace, probe    text out of it, a look inside it, the proof that it is causal
    distributed                         several processes as one
    optimizer, training, checkpoint     how it learns, and how nothing is lost
    floor, cost                         how far from the best possible reader, and for how much
    run                                 a run folder, made ready
    picture, report, record, signals    how the folder is filled, what is shown of it, what stops it
    part_times, trainer                 where a step's time goes; one training from start to finish
    compare, measure, crew              what differs and what is held equal; one run; the processes that do them
    interval, summary, page, contest    is a difference real; what was found, as a table and as a page; all of it
    bench/ledger, yardstick, ...        the same beside other programs: how fast, to which loss, with how much memory
    command                             what the scripts share: plugins, exit codes

From a notebook:

    import minigpt
    run = minigpt.load("runs/tiny")
    print(run.generate("Once"))
    weights = run.attention("Once upon")        # one (H, T, T) a layer
"""

from minigpt.attention import Attention
from minigpt.model import GPT, ModelConfig
from minigpt.run import Run, RunConfig, load, load_plugin

__all__ = ["GPT", "Attention", "ModelConfig", "Run", "RunConfig", "load", "load_plugin"]
