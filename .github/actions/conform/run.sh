#!/bin/sh
# Builds conform from the checkout of this action and runs it. The inputs of action.yml
# are in CONFORM_*. The exit status is conform's.
set -eu

out=$(mktemp -d "${RUNNER_TEMP:-/tmp}/conform.XXXXXX")
command -v go >/dev/null || { echo "::error::conform needs Go: add actions/setup-go before this step" >&2; exit 2; }
GOBIN=$out GOWORK=off GOFLAGS=-buildvcs=false go -C "$GITHUB_ACTION_PATH/../../.." install ./delegate/conform/cmd/conform || exit 2

# As root, on a runner whose users may not make namespaces.
as=
if [ "$(id -u)" != 0 ] && ! unshare --user --map-root-user --net true 2>/dev/null && sudo -n true 2>/dev/null; then as=sudo; fi

set -f # split the flags at the ends of lines, and do nothing else with them
IFS='
'
# shellcheck disable=SC2086
set -- ${CONFORM_FLAGS:-}
unset IFS
[ -z "${CONFORM_CONFIGURATION:-}" ] || set -- "$@" "-conf=$CONFORM_CONFIGURATION"
[ -z "${CONFORM_KIND:-}" ] || set -- "$@" "-kind=$CONFORM_KIND"
[ -z "${CONFORM_BASELINE:-}" ] || set -- "$@" "-baseline=$CONFORM_BASELINE"

status=0
${as:+sudo -n env "PATH=$PATH"} "$out/conform" "$@" "-junit=$out/junit.xml" "-markdown=$out/summary.md" -- "$CONFORM_PLUGIN" || status=$?
if [ -e "$out/summary.md" ]; then
	cat "$out/summary.md" >>"$GITHUB_STEP_SUMMARY"
	echo "junit=$out/junit.xml" >>"$GITHUB_OUTPUT"
fi
exit $status
