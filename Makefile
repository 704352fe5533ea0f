# Every target is a command or two. .ci/run runs some, and takes the versions of tools from here.

# The modules that users and operators get, with their tests; and those of the tests that need
# processes, namespaces, servers or the code of Helm, the dearest last. tagged are such tests of the
# other modules.
MODULES := . $(patsubst %/go.mod,%,$(wildcard delegate/*/go.mod examples/*/go.mod))
E2E := tagged examples/multinet/chart internal/e2e internal/e2e/kube

# Flags for every go test, flags for bench and scale, and the time for each fuzz target.
# PEERS are plugins of others to compare with: "multus=/opt/cni/bin/multus NAME=PATH".
PEERS ?= $(METACNI_PEER)
TESTFLAGS ?=
BENCHFLAGS ?=
SCALEFLAGS ?=
FUZZTIME ?= 10s

GOTESTSUM := gotest.tools/gotestsum@v1.13.0
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0
APIDIFF := golang.org/x/exp/cmd/apidiff@v0.0.0-20251219203646-944ab1f22d93
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

.PHONY: demo dra test e2e evidence peers museum matrix scale bench histories lint vuln fuzz cover api costs release

# The demo, with real namespaces and plugins; as root or in a user namespace.
demo:
	go run ./examples/lab

# How a pod gets a network by ResourceClaim, with a real kube-apiserver, which the first
# run builds in about four minutes; as root or in a user namespace.
dra:
	@go test -C internal/e2e/kube -count=1 -v -run '^TestStoryOfAClaim$$' .

# The tests that need no more than Go. At the end this prints what failed and what was skipped,
# and why.
test:
	@.ci/test "$(MODULES)" $(TESTFLAGS)

# The tests with real processes, namespaces, kernels, file systems and servers, as root. The first
# run builds kube-apiserver and containerd in about eight minutes. E2E has the modules.
e2e:
	@.ci/test "$(E2E)" $(TESTFLAGS)

# What takes hours, and what is published: each writes its page.
evidence: peers museum matrix scale bench histories

# The same input to metacni and to others: internal/evidence/peers/README.md has what differs.
# METACNI_CLONES has clones of Multus and of flannel's plugin: MODULE=DIRECTORY.
peers:
	go test -C internal/evidence -count=1 -v ./peers

# Outages of public issue trackers, replayed; accepts what they show as the table of
# internal/evidence/museum/README.md. PEERS may have multus and flannel.
museum:
	METACNI_E2E=require go test -C internal/evidence -count=1 ./museum -update $(PEERS:%=-peer %)

# The conformance suite with public CNI plugins, which it downloads; accepts what it finds as
# internal/evidence/matrix/README.md. METACNI_CLONES has clones of modules that no proxy serves.
matrix:
	go test -C internal/evidence ./matrix -count=1 -timeout 1h -run Matrix -all -update

lint:
	@.ci/run lint

# Known vulnerabilities that the code can reach. The database is vuln.go.dev, or
# GOVULNDB, which may be a file:// URL.
vuln:
	@set -e; for m in $(MODULES); do (set -x; \
		go run -C $$m $(GOVULNCHECK) $(if $(GOVULNDB),-db $(GOVULNDB)) ./...); done

# What multinet costs compared with other meta-plugins, those of PEERS too: writes
# internal/evidence/bench/README.md and the table in README.md; half an hour. For single functions:
# go test -run '^$$' -bench . ./...
bench:
	METACNI_E2E=require go test -C internal/evidence -bench . -benchtime 31x -timeout 3h $(BENCHFLAGS) ./bench -update $(PEERS:%=-peer %)

# What many nodes ask of a real kube-apiserver. SCALEFLAGS="-views 20" is quicker.
scale:
	go test -C internal/evidence -count=1 -v -timeout 2h ./scale -views 500 -pods 10 -definitions 1000 $(SCALEFLAGS)

# Every fuzz target, for FUZZTIME each.
fuzz:
	@FUZZTIME=$(FUZZTIME) .ci/run fuzz

# Many random histories: of one process with every fault, of daemons in simulated time, of many
# processes that are killed, and of these without each line that guards a lock; of containers that
# live and die on a real kernel, as root for an hour, with each command whatever became of an
# interface and of its path, and without each line that decides about life; three hours.
histories:
	go test ./delegate/lifecycle -timeout 1h -run '^TestGuaranteesHoldInEveryHistory$$' -history.count 10000
	go test -C examples/multinet -timeout 1h -run '^TestSimulation$$' ./daemon -seeds 1000
	METACNI_E2E=require go test -C internal/e2e/history -count=1 -timeout 3h -v . -ops 1000000 -mutants
	METACNI_E2E=require go test -C internal/e2e/life -count=1 -timeout 6h -v . -for 1h -cross all -mutants

cover:
	go test -cover ./...

# Accepts the present exported API.
api:
	go test ./internal/api -run '^TestAPI$$' -update

# Accepts what the commands of the examples cost at present, in counts.
costs:
	go test -C internal/e2e -count=1 -run '^TestCostIsAsCommitted$$' . -update

# The files of a release in dist/, from the tag of HEAD.
release:
	.ci/release
