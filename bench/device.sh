#!/usr/bin/env bash
# bench/device.sh: builds where nothing is built yet, verifies and times on a machine with an H200.
set -uo pipefail

usage() {
  cat <<'END'
Usage: bench/device.sh [--quick] [PART…]

Parts, each under 8 minutes; all of them if none is named:
  verify    coda verify --device cuda: the case table, golden schedules, every candidate tile
  sanitize  compute-sanitizer's four tools on a sample of programs that covers every path
  gemm fused weights rope head stream layer compile
            bench/bench.py: against cuBLAS and others
  torch     bench/torch_models.py: whole models by torch.compile(backend="coda") and by Inductor
  parity    bench/torch_parity.py: gradients of families of transformers beside double precision

Results go to $OUT, or to bench/results. A part that fails does not stop the next; the exit code is
the number of parts that failed.

  --quick   few rounds, no rivals, a smaller sample
  --pack    only puts what was built, and oneDNN, into build/device, small enough to be carried to a
            machine where nothing can be built; there the script takes it, and for the processor
            bench/cpu.py --library build/device/libcoda_bench_cpu.so
END
}

# The command, the library and what they load, without symbols.
pack() {
  mkdir -p build/device
  strip -o build/device/coda "${CODA_BUILD:-build}/coda" &&
    strip -o build/device/libcoda_bench.so "${CODA_BUILD:-build}/libcoda_bench.so" &&
    strip -o build/device/libcoda_bench_cpu.so "${CODA_BUILD:-build}/libcoda_bench_cpu.so" &&
    strip -o build/device/panel_gemm_test "${CODA_BUILD:-build}/tests/panel_gemm_test" &&
    ldd build/device/libcoda_bench_cpu.so | awk '/libhwy|libgomp/ { print $3 }' |
    xargs -I{} cp -L {} build/device/ &&
    strip -o build/device/libdnnl.so.3 .venv/lib/libdnnl.so.3 && du -sh build/device
}

quick=()
parts=()
for argument in "$@"; do
  case $argument in
    --help | -h) usage && exit 0 ;;
    --quick) quick=(--quick) ;;
    --pack) cd "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/.." && pack && exit 0 || exit 1 ;;
    verify | sanitize | gemm | fused | weights | rope | head | stream | layer | compile | \
      torch | parity)
      parts+=("$argument") ;;
    *) printf 'device.sh: unknown part %s\n\n' "$argument" >&2 && usage >&2 && exit 2 ;;
  esac
done
((${#parts[@]})) ||
  parts=(verify sanitize gemm fused weights rope head stream layer compile torch parity)

cd "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/.."
export OUT=${OUT:-$PWD/bench/results}
mkdir -p "$OUT"
readonly budget=450 # seconds of a part
torch_results=$OUT/h200-torch-$(date +%F).json
readonly torch_results

# A tree that was built elsewhere runs as it is.
export LD_LIBRARY_PATH=$PWD/build/device:$PWD/.venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
coda=
for folder in "${CODA_BUILD:-}" build build/device; do
  if [[ -n $folder && -e $folder/libcoda_bench.so ]] &&
    "$folder/coda" --version >/dev/null 2>&1; then
    coda=$(realpath -- "$folder")/coda
    break
  fi
done
if [[ -z $coda ]]; then
  source .ci/setup.sh
  need_venv requirements.txt
  need_cmake
  build release coda_cli && build release coda_bench || exit 1
  coda=$PWD/build/coda
fi
export coda CODA_BENCH_LIBRARY=${coda%/*}/libcoda_bench.so
"$coda" env || true

# What the sanitizers see, in words: TMA and plain loads, one and several products, sums along K,
# columns of several tensors, heads, heads that lie in two blocks, pairs of blocks, row and
# column blocks, pick, accumulation, streams of each kind, the predicated path (odd sizes),
# attention. Files of programs/ or tests/golden/.
readonly sample=(
  "linear.coda linear M=200 N=328 K=136"
  "linear.coda linear M=65 N=129 K=63"
  "linear.coda linear_grad M=130 N=72 K=200"
  "norm.coda residual_norm M=200 N=328 K=136"
  "norm.coda norm_linear M=130 N=72 K=200"
  "norm.coda rmsnorm_grad M=130 F=136 D=200"
  "gated.coda norm_swiglu M=130 K=136 F=200"
  "gated.coda swiglu_grad M=130 D=72 F=200"
  "rope.coda norm_rope B=2 S=64 D=136 H=4 G=2 E=128"
  "rope.coda norm_rope_adjacent B=2 S=32 D=64 H=4 G=2 E=16"
  "rope.coda norm_rope_partial B=2 S=32 D=64 H=4 G=2 E=16 R=8"
  "rope.coda rope_norm_grad B=2 S=32 H=4 G=2 E=16"
  "qwen3.layer.training.coda layer_2_z_wq B=2 S=64 D=392 H=4 G=2 --tile 128x192x2-across"
  "weight_grad.coda weight_grad M=200 N=136 K=72"
  "linear.coda linear M=512 N=512 K=512 --tile 128x192x2"
  "weight_grad.coda weight_grad_norm M=130 D=136 K=72"
  "weight_grad.coda weight_grad_qkv M=130 Q=128 P=64 D=72"
  "cross_entropy.coda cross_entropy_partial M=130 K=72 V=328"
  "cross_entropy.coda cross_entropy_logit_grad M=65 K=64 V=264"
  "cross_entropy.coda cross_entropy_rows M=5 V=1024"
  "norm.coda rmsnorm_rows M=64 D=256"
  "norm.coda layernorm_rows M=3 D=129"
  "linear.coda bias_grad M=129 N=65"
  "linear.coda linear_residual M=64 N=128 K=64"
  "embedding.coda embedding_grad V=65 D=63 M=33"
  "adamw.coda adamw_master M=3 N=129"
  "attention.coda attend B=1 S=33 T=33 H=3 G=1 E=16"
)

# sanitize_one TOOL FILE PROGRAM SIZES…: silent where all is well.
sanitize_one() {
  local tool=$1 file=programs/$2 program=$3 log
  [[ -e $file ]] || file=tests/golden/$2
  shift 3
  log="$OUT/sanitize-$tool-$program-${*//[^A-Za-z0-9]/}.log"
  if timeout 200 compute-sanitizer --tool "$tool" --error-exitcode 9 \
    "$coda" verify "$file" --program "$program" --device cuda --seeds 1 \
    --size "$@" >"$log" 2>&1; then
    rm -f "$log"
    printf 'clean %s\n' "$tool" >>"$OUT/sanitize.txt"
  else
    printf 'NOT CLEAN %s %s %s: %s\n' "$tool" "$program" "$*" \
      "$(grep -m1 -E 'Invalid|Race|hazard|Uninit|Barrier|ERROR SUMMARY|error' "$log")" |
      tee -a "$OUT/sanitize.txt"
  fi
}
export -f sanitize_one

sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer"; return 1; }
  local entry tool jobs=() chosen=("${sample[@]}")
  ((${#quick[@]} == 0)) || chosen=("${sample[@]:3:4}")
  export CODA_CACHE=${CODA_CACHE:-$(mktemp -d)} CODA_THREADS=1
  rm -f "$OUT/sanitize.txt"
  for tool in memcheck racecheck initcheck synccheck; do
    for entry in "${chosen[@]}"; do jobs+=("$tool $entry"); done
  done
  printf '%s\n' "${jobs[@]}" |
    timeout "$budget" xargs -P "$(($(nproc) > 2 ? $(nproc) - 2 : 1))" -I{} \
      bash -c 'sanitize_one {}' || echo "sanitize: stopped after $budget s"
  local clean
  clean=$(grep -c '^clean' "$OUT/sanitize.txt" 2>/dev/null || true)
  printf 'sanitize: %s of %s runs clean (%s programs, 4 tools)\n' "${clean:-0}" "${#jobs[@]}" \
    "${#chosen[@]}"
  [[ ${clean:-0} == "${#jobs[@]}" ]]
}

verify() {
  local options=(--budget "$budget" --coda "$coda")
  ((${#quick[@]} == 0)) || options+=(--seeds 1 table)
  python3 bench/verify.py "${options[@]}"
}

# Llama-3 1B's sizes, layers of width 4096, and a small batch.
whole_models() {
  models() { timeout "$budget" python3 bench/torch_models.py --output "$torch_results" "$@"; }
  if ((${#quick[@]})); then
    models --case llama_1b_4_layers --layers 4 --rounds 3
    return
  fi
  models --case llama_1b --rivals inductor,max-autotune --profile &&
    models --case llama_4096 --layers 4 --width 4096 --hidden 14336 &&
    models --case llama_1b_small --batch 1 --length 4096 &&
    models --case llama_1b_4_layers_mask --layers 4 --attention sdpa
}

failed=0
report=()
for part in "${parts[@]}"; do
  start=$SECONDS
  printf '== %s\n' "$part"
  case $part in
    verify | sanitize) "$part" ;;
    torch) whole_models 2>&1 ;;
    parity) timeout "$budget" python3 bench/torch_parity.py --output "$torch_results" 2>&1 ;;
    *) python3 bench/bench.py "$part" --budget "$budget" "${quick[@]}" 2>&1 ;;
  esac
  outcome=$?
  report+=("$(printf '%-9s %4d s  %s' "$part" $((SECONDS - start)) \
    "$([[ $outcome == 0 ]] && echo ok || echo "exit $outcome")")")
  [[ $outcome == 0 ]] || failed=$((failed + 1))
done
printf '== results in %s\n' "$OUT"
printf '%s\n' "${report[@]}"
exit "$failed"
