#!/usr/bin/env bash
# bench/two_gpus.sh: a Llama under fully_shard and DDP on two GPUs, beside one GPU and Inductor.
set -uo pipefail

usage() {
  cat <<'END'
Usage: bench/two_gpus.sh [--rehearse] [WORKER OPTION…]

Trains the same model for 50 steps with one process and with two, by backend coda, per layer and
whole, and by Inductor; then compares losses (to 1e-3) and tokens/s (1.9 times those of one GPU),
and writes h200x2-DATE.json to $OUT, or to bench/results.

  --rehearse   two processes on the CPU, gloo, a tiny model: no speed is judged
END
}

rehearse=no
case ${1:-} in
  --help | -h) usage && exit 0 ;;
  --rehearse) rehearse=yes && shift ;;
esac
cd "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/.."
python=.venv/bin/python
[[ -x $python ]] || python=python3
out=${OUT:-bench/results}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sizes=("$@")
[[ $rehearse == no ]] || sizes=(--device cpu --layers 2 --width 64 --hidden 160 --heads 4
  --vocabulary 256 --batch 4 --length 24 --steps 8 "$@")

# one NAME PROCESSES OPTION…
one() {
  local name=$1 processes=$2
  shift 2
  if [[ $* != *--kind* ]]; then
    "$python" bench/two_gpus_worker.py --output "$work/$name.json" "${sizes[@]}" "$@"
  else
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$processes" \
      bench/two_gpus_worker.py --output "$work/$name.json" "${sizes[@]}" "$@"
  fi 2>"$work/$name.log" && return
  echo "$name failed:"
  # What a process said, not what torchrun says of it.
  grep -E -m 3 -B 12 '^(\[rank[0-9]*\]: *)?[A-Za-z_.]*(Error|Unsupported)' "$work/$name.log"
}

one alone 1
one alone_fsdp 1 --kind fsdp # weights in float32, as under fully_shard
one alone_per_block 1 --per-block
one alone_fsdp_per_block 1 --kind fsdp --per-block
one fsdp 2 --kind fsdp
one fsdp_per_block 2 --kind fsdp --per-block
one ddp 2 --kind ddp
one ddp_per_block 2 --kind ddp --per-block
one fsdp_inductor 2 --kind fsdp --per-block --backend inductor
"$python" - "$work" "$out" "$rehearse" <<'END'
import datetime, json, pathlib, sys
import torch
work, out, rehearse = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3] == "yes"
found = {p.stem: json.loads(p.read_text()) for p in sorted(work.glob("*.json"))}
names = ("alone", "alone_fsdp", "alone_per_block", "alone_fsdp_per_block", "fsdp",
         "fsdp_per_block", "ddp", "ddp_per_block", "fsdp_inductor")
wrong = [f"{n} did not run" for n in names if n not in found]
if not any("alone" in n for n in wrong):
    for name, run in found.items():
        base = found["alone" + "_fsdp" * (run["kind"] == "fsdp")
                     + "_per_block" * run["per_block"]]
        off = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], base["losses"]))
        run["off"] = off
        run["speedup"] = run["tokens_per_second"] / base["tokens_per_second"]
        print(f"{name:20s} losses off by {off:.1e}, {run['speedup']:.2f} times one process, "
              f"{run['tokens_per_second']:.0f} tokens/s, first step {run['first_step_s']:.0f} s")
        if off > 1e-3:
            wrong.append(f"{name}: losses are off by {off:.1e}")
        if not rehearse and run["processes"] == 2 and run["backend"] == "coda" \
                and run["speedup"] < 1.9:
            wrong.append(f"{name}: {run['speedup']:.2f} times the tokens/s of one GPU, goal 1.9")
if {"fsdp_per_block", "fsdp_inductor"} <= set(found):
    ratio = (found["fsdp_per_block"]["tokens_per_second"]
             / found["fsdp_inductor"]["tokens_per_second"])
    print(f"per block under fully_shard, coda is {ratio:.3f} times as fast as Inductor")
if not rehearse and found:
    date = datetime.date.today().isoformat()
    out.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.get_device_name()
    row = {"date": date, "gpu": gpu, "torch": torch.__version__, "rows": found, "missed": wrong}
    (out / f"h200x2-{date}.json").write_text(json.dumps(row, indent=1))
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
