#!/usr/bin/env bash
# The one test command: ./test.sh [flags of go test]
#
# As root on Debian it first installs the programs that tests use and that are
# missing. Elsewhere it names them, and the tests that need them are skipped.
# With SANDGATE_TEST_REQUIRE=all a missing program is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Each line is a Debian package and what shows that it is there: a command, a
# file, or a module of the system's Python.
needs='
	ansible-core      ansible
	btrfs-progs       mkfs.btrfs
	busybox-static    busybox
	curl              curl
	docker.io         dockerd
	dropbear-bin      dbclient
	fish              fish
	fuse3             fusermount3
	gcc               gcc
	git               git
	iproute2          ip
	iptables          iptables
	lftp              lftp
	libc6-dev         /usr/include/stdio.h
	nodejs            node
	npm               npm
	openssh-client    ssh
	podman            podman
	procps            ps
	putty-tools       plink
	python3           /usr/bin/python3
	python3-asyncssh  python:asyncssh
	python3-paramiko  python:paramiko
	rclone            rclone
	ripgrep           rg
	rsync             rsync
	socat             socat
	sshfs             sshfs
	systemd           systemd-analyze
	zsh               zsh
	tmux              tmux
'

# Clients from npm, of pinned versions: by itself npm takes what suits its node.
clients=(@modelcontextprotocol/inspector@0.15.0 acpx@0.1.15)

heading() { printf '\n== %s\n' "$*"; }

fail() {
	echo "test.sh: $*" >&2
	exit 1
}

present() {
	case $1 in
	python:*) /usr/bin/python3 -c "import ${1#python:}" 2>/dev/null ;;
	/*) [ -e "$1" ] ;;
	*) [ -n "$(command -v "$1")" ] ;;
	esac
}

find_missing() {
	missing=()
	while read -r package sign; do
		if [ -n "$package" ] && ! present "$sign"; then
			missing+=("$package")
		fi
	done <<<"$needs"
}

find_missing
if [ ${#missing[@]} -gt 0 ] && [ "$EUID" = 0 ] && present apt-get; then
	heading "apt-get install ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update &&
		apt-get -qq install --no-install-recommends "${missing[@]}" >/dev/null ||
		echo "apt-get failed" >&2
	find_missing
fi
if [ ${#missing[@]} -gt 0 ]; then
	if [ "${SANDGATE_TEST_REQUIRE:-}" = all ]; then
		fail "missing: ${missing[*]}"
	fi
	heading "missing, so some tests will be skipped: ${missing[*]}"
fi

if present npm; then
	case $(node --version) in
	v?.* | v1?.*) clients+=(node@20.19.5) ;; # too old for them
	esac
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/sandgate-test/$(printf '%s\n' "${clients[@]}" | sha256sum | cut -c 1-16)
	if ! [ -e "$cache/complete" ]; then
		heading "npm install ${clients[*]}"
		if npm install --prefix "$cache" --no-audit --no-fund --loglevel error "${clients[@]}"; then
			touch "$cache/complete"
		elif [ "${SANDGATE_TEST_REQUIRE:-}" = all ]; then
			fail "npm cannot install ${clients[*]}"
		fi
	fi
	PATH=$cache/node_modules/.bin:$PATH
fi

if ! present go; then
	PATH=$PATH:/usr/local/go/bin
	present go || fail "go is neither in PATH nor in /usr/local/go/bin"
fi

heading gofmt
unformatted=$(gofmt -d .)
[ -z "$unformatted" ] || fail "gofmt would change this:
$unformatted"

heading go vet
go vet ./...

heading staticcheck
go tool staticcheck ./...

heading govulncheck
if ! report=$(go tool govulncheck ./... 2>&1); then
	case $report in
	*'fetching vulnerabilities'*) echo "NOT CHECKED: the vulnerability database cannot be reached" ;;
	*) fail "$report" ;;
	esac
fi

heading go mod tidy
go mod tidy -diff

# The race detector needs a C compiler.
race=()
if present gcc && present /usr/include/stdio.h; then
	race=(-race)
	export CGO_ENABLED=1
else
	heading "no C compiler, so no race detector"
fi

# An engine of the tests' own, unless DOCKER_HOST names one that answers. It needs
# no network, since images are made of this host's files, and no right to change
# the host's: no bridge, no rules. Our own runsc is one of its runtimes.
engine=
start_engine() {
	if [ -n "${DOCKER_HOST:-}" ] && docker version >/dev/null 2>&1; then
		return
	fi
	unset DOCKER_HOST
	if [ "$EUID" != 0 ] || ! present dockerd; then
		heading "no Docker engine, so its tests will be skipped"
		return
	fi
	heading "a Docker engine for the tests"
	engine=$(mktemp -d "${TMPDIR:-/tmp}/sandgate-engine-XXXXXX")
	CGO_ENABLED=0 go build -o "$engine/sandgate" .
	cat >"$engine/daemon.json" <<-EOF
		{"runtimes": {"sandgate": {"path": "$engine/sandgate", "runtimeArgs":
			["runsc", "--host-uds=open", "--overlay2=none", "--allow-suid"]}}}
	EOF
	# Not in our session: ^C is for the tests, the engine is ended after them.
	setsid dockerd --config-file "$engine/daemon.json" --data-root "$engine/data" \
		--exec-root "$engine/run" --pidfile "$engine/pid" -H "unix://$engine/docker.sock" \
		--bridge=none --iptables=false --ip6tables=false >"$engine/log" 2>&1 </dev/null &
	export DOCKER_HOST=unix://$engine/docker.sock
	for _ in $(seq 300); do
		if docker version >/dev/null 2>&1; then
			return
		fi
		sleep 0.2
	done
	tail -20 "$engine/log" >&2
	fail "the Docker engine does not start"
}

stop_engine() {
	[ -n "$engine" ] || return 0
	local pid
	pid=$(cat "$engine/pid" 2>/dev/null) || pid=
	if [ -n "$pid" ]; then
		docker ps -aq | xargs -r docker rm -f >/dev/null 2>&1 || true
		kill "$pid" 2>/dev/null || true
		for _ in $(seq 150); do
			[ -e "/proc/$pid" ] || break
			sleep 0.2
		done
		kill -KILL "$pid" 2>/dev/null || true
	fi
	# What a killed engine leaves mounted is below its folder.
	awk -v dir="$engine/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount -l || true
	rm -rf "$engine"
}

# The suite of the drivers adds a line for each driver and group.
table=$(mktemp)
trap 'rm -f "$table" "$table.flaky"; stop_engine' EXIT
start_engine
chmod 666 "$table" # some of it is run by another user
export SANDGATE_TEST_TABLE=$table

show_table() {
	[ -s "$table" ] || return 0
	heading "cases of the drivers' suite: passed, or failed!; (not on this host)"
	awk -F '\t' '
		!($1 in width) { driver[++drivers] = $1; width[$1] = length($1) > 12 ? length($1) : 12 }
		!($2 in seen)  { seen[$2]; group[++groups] = $2 }
		{ cell[$1, $2] = ($4 > 0 ? $4 "!" : $3) ($5 > 0 ? " (" $5 ")" : "") }
		END {
			printf "%-12s", ""
			for (d = 1; d <= drivers; d++) printf "  %-*s", width[driver[d]], driver[d]
			print ""
			for (g = 1; g <= groups; g++) {
				printf "%-12s", group[g]
				for (d = 1; d <= drivers; d++) printf "  %-*s", width[driver[d]], cell[driver[d], group[g]]
				print ""
			}
		}' "$table"
}

# A test that fails and then passes is listed as flaky, which is a fault in it or in
# what it tests and is to be mended; but it does not fail the whole, since of some
# thousand tests against real clients and engines one does now and then. It has to
# pass by itself, nothing is run again when more than three failed, and a data race
# fails at once.
flaky=$table.flaky
heading "go test ${race[*]} $*"
status=0
# The longest come first, so that no processor is idle at the end.
go tool gotestsum --format standard-quiet --hide-summary skipped \
	--rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-abort-on-data-race \
	--rerun-fails-report "$flaky" --packages "./sandbox/gvisor ./sandbox/docker . ./gateway ./sandbox/guest ./gateway/daemon ./..." \
	-- "${race[@]}" -timeout 60m "$@" || status=$?
show_table
if [ -s "$flaky" ]; then
	heading "FLAKY: failed, and was run again"
	cat "$flaky"
fi
exit $status
