#!/bin/sh
# Every trial of the trade-off: `sh tradeoff-run.sh BASE SUBSETS OUT`, SUBSETS being what subsets.py wrote.
# It resumes: what is trained already is not trained again. The folder's tables hold all trials.
set -e
base=$(realpath "$1"); out=$(realpath -m "$3"); cd "$2"
three="--task ./corporate_messaging --task ./disasters --task ./global_warming"
four="--task ./airline $three"
try() {
    adapter-probe tradeoff --base "$base" --out "$out" --dtype bfloat16 --seeds 1 --workers 1 --sizes= --top-k= \
        --no-layernorm --no-full "$@"
}
long() { try --batch-size 16 --epochs 3 "$@"; }
small() { try --batch-size 8 --epochs 4 "$@"; }  # twice the steps on the 400 tweets

long --task sst2 --task ./airline --sizes 64 --learning-rates 3e-4,1e-3,3e-3
long $three --sizes 64 --learning-rates 3e-3
long --task sst2 --task ./airline --task ./corporate_messaging --task ./disasters --sizes 1 --learning-rates 3e-3
long --task sst2 --sizes 16,256 --learning-rates 1e-3
long --task sst2 --full --learning-rates 3e-5,1e-4,3e-4
long --task sst2 --top-k 1,2,3 --head-only --learning-rates 3e-4,1e-3,3e-3
long --task sst2 --head-only --learning-rates 1e-2,3e-2,1e-1
long --task sst2 --layernorm --learning-rates 3e-3,1e-2
long $four --full --learning-rates 1e-4

small --task ./airline --sizes 64 --learning-rates 3e-3
small $four --sizes 1,16,64 --learning-rates 1e-3
small $four --layernorm --learning-rates 3e-3
small $four --top-k 1,2,3 --head-only --learning-rates 1e-3
small $four --head-only --learning-rates 1e-2,3e-2,1e-1
small --task ./airline --task ./corporate_messaging --full --learning-rates 1e-4

longest() { try --batch-size 8 --epochs 10 "$@"; }  # what more steps bring
longest --task ./corporate_messaging --sizes 64 --learning-rates 1e-3
longest --task ./airline --task ./corporate_messaging --sizes 1 --learning-rates 3e-3

# Without pretraining
long --task sst2 $four --baseline --learning-rates 1e-3
