#!/usr/bin/env bash
# Makes requirements.lock and requirements-dev.lock: what a clean environment gets for the .in files.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# One `name==version` a line. A local version (+cpu) names a build, which scripts/setup.py decides;
# a marker of an .in file is kept, since on another platform the package may have no wheel.
frozen() {
  pip freeze --all | grep -vE '^pip==' | sed -E 's/\+[A-Za-z0-9.]+$//' | LC_ALL=C sort -f |
    awk -F'==' 'NR == FNR { if (split($0, part, ";") == 2 && $0 !~ /^#/) {
                              name = tolower(part[1]); sub(/[=<>].*/, "", name); gsub("_", "-", name)
                              marker[name] = part[2] } next }
                { name = tolower($1); gsub("_", "-", name)
                  print (name in marker) ? $0 ";" marker[name] : $0 }' \
      <(cat requirements.in requirements-executor.in requirements-dev.in) -
}

pip install -qq -r requirements.in -r requirements-executor.in
frozen >"$work/runtime"
pip install -qq -r requirements.in -r requirements-executor.in -r requirements-dev.in
frozen >"$work/all"
{ echo "# Made by scripts/lock.sh from requirements.in and requirements-executor.in."; cat "$work/runtime"; } >requirements.lock
{
  echo "# Made by scripts/lock.sh from requirements-dev.in; installed on top of requirements.lock."
  grep -vxFf "$work/runtime" "$work/all"
} >requirements-dev.lock
