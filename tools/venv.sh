#!/bin/sh
# venv.sh DIR PYTHON: makes the virtual environment DIR unless a usable one is there. Says in one
# sentence what is missing when it cannot.
set -eu
dir=$1
python=$2
recent='import sys; sys.exit(sys.version_info < (3, 11))'

fail() {
	echo "onceproxy: $1" >&2
	exit 1
}

if [ -x "$dir/bin/python" ] && "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
	"$dir/bin/python" -c "$recent" ||
		fail "$dir was made with a Python older than 3.11; remove it (make clean) and start again"
	exit 0
fi

if ! "$python" -c "$recent" 2>/dev/null; then
	found=
	for name in python3.14 python3.13 python3.12 python3.11; do
		if "$name" -c "$recent" 2>/dev/null; then
			found=$name
			break
		fi
	done
	[ -n "$found" ] ||
		fail "Python 3.11 or newer is needed, and '$python' is not one; name it with: make PYTHON=/path/to/python3.11 ..."
	python=$found
fi

"$python" -c 'import ensurepip' 2>/dev/null ||
	fail "this Python has no ensurepip; on Debian and Ubuntu: apt-get install python3-venv"
"$python" -m venv --clear "$dir"
