#!/bin/sh
# Every trial of the trade-off: `sh tradeoff-run.sh BASE SUBSETS OUT`, with the folders that subsets.py made.
# The same command goes on where it was interrupted; what is already trained is not trained again.
set -e
base=$(realpath "$1"); out=$(realpath -m "$3"); cd "$2"
short="adapter-probe tradeoff --base $base --dtype bfloat16 --seeds 1 --out $out --sizes= --top-k= --no-layernorm --no-full"
