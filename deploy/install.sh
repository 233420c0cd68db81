#!/bin/sh
# What the image is made of: shoal in a virtual environment, its policies compiled. Run from the repository.
#   deploy/install.sh DIRECTORY [POLICY …]
set -eu
target=$1
shift
python -m venv "$target"
"$target/bin/pip" install --quiet --no-cache-dir -c constraints.txt '.[serve,postgres,parquet]'
NUMBA_CACHE_DIR="$target/compiled" "$target/bin/shoal" warm "${@:-bass}"
chmod -R a+rX "$target"
