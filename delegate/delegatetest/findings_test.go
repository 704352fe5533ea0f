package delegatetest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A flatT is a TB without subtests, such as Ginkgo's.
type flatT struct {
	ctx                   context.Context
	failed, said, skipped *[]string
}

func newFlatT(ctx context.Context) flatT {
	return flatT{ctx, new([]string), new([]string), new([]string)}
}

func (t flatT) Context() context.Context { return t.ctx }
func (flatT) Helper()                    {}

func (t flatT) Errorf(format string, args ...any) {
	*t.failed = append(*t.failed, fmt.Sprintf(format, args...))
}

func (t flatT) Logf(format string, args ...any) {
	*t.said = append(*t.said, fmt.Sprintf(format, args...))
}
func (t flatT) Skip(args ...any) { *t.skipped = append(*t.skipped, fmt.Sprint(args...)) }

// Without subtests all failures are in one Errorf: Ginkgo's ends the test.
func TestConformWithoutSubtestsFailsOnce(t *testing.T) {
	t.Parallel()
	flat := newFlatT(t.Context())
	delegatetest.Conform(flat, newMeta("ignores DEL", "own codes").program(), metaConfig)
	if len(*flat.failed) != 1 || !strings.Contains((*flat.failed)[0], "code: ") || !strings.Contains((*flat.failed)[0], "\ndel-error: ") {
		t.Errorf("failed with %q", *flat.failed)
	}
	if diff := cmp.Diff([]string{"stderr: skipped: the plugin is not a process"}, *flat.said); diff != "" || len(*flat.skipped) > 0 {
		t.Errorf("said (-want +got):\n%sskipped %q", diff, *flat.skipped)
	}

	flat = newFlatT(t.Context())
	delegatetest.Conform(flat, newMeta().program(), metaConfig)
	if len(*flat.failed) > 0 {
		t.Errorf("failed with %q", *flat.failed)
	}
}

func TestFailuresSayWhyAndWhere(t *testing.T) {
	t.Parallel()
	findings, err := delegatetest.Findings(t.Context(), newMeta("ignores DEL").program(), metaConfig)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for f := range findings {
		all = append(all, f.Name)
		said := f.String()
		if failed := f.Name == "del-error"; failed != (f.Err != nil) || failed != (strings.Contains(said, f.Why) && strings.Contains(said, f.Where)) {
			t.Errorf("said %s", said)
		}
	}
	if diff := cmp.Diff(names(), all); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
}

func TestAddOfAChainedPluginGetsPrevResult(t *testing.T) {
	t.Parallel()
	path := script(t, `
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.2.0","0.4.0","1.0.0","1.1.0"]}' ;;
ADD) jq=$(cat); case $jq in *'"prevResult":'*) ;; *) echo '{"cniVersion":"1.1.0","code":7,"msg":"no prevResult"}'; exit 1 ;; esac
	jq=${jq#*'"prevResult":'}; echo "${jq%%,\"type\"*}" ;;
esac`)
	conf := delegatetest.Config{Skip: make(map[string]string), Stdin: func(string) string {
		return `{"type":"chained","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"interface":0,"address":"10.1.0.2/24"}]}}`
	}}
	for _, name := range names() {
		if !slices.Contains([]string{"version", "add", "stdout", "result", "versions", "del", "gc", "status"}, name) {
			conf.Skip[name] = "not asked for"
		}
	}
	delegatetest.Conform(t, delegatetest.Binary{Path: path, Env: []string{"PATH=" + os.Getenv("PATH")}}, conf)

	conf.Stdin = func(string) string { return `{"type":"chained","prevResult":{"cniVersion":"9.9.9"}}` }
	if _, err := delegatetest.Findings(t.Context(), delegatetest.Binary{Path: path}, conf); err == nil || !strings.Contains(err.Error(), "prevResult") {
		t.Errorf("error %v", err)
	}
}

func TestABinaryThatDoesNotEndIsAFinding(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"hangs":                {"exec sleep 5", "did not end in time"},
		"leaves a process":     {"sleep 5 & echo $! >&2; echo '{}'", "left a process behind"},
		"its child hangs also": {"sleep 5; true", "did not end in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := metaConfig
			conf.Timeout = 100 * time.Millisecond
			if name == "leaves a process" {
				conf.Timeout = time.Minute
			}
			findings, err := delegatetest.Findings(t.Context(), delegatetest.Binary{
				Path: script(t, tt.text), Env: []string{"PATH=" + os.Getenv("PATH")},
			}, conf)
			if err != nil {
				t.Fatal(err)
			}
			for f := range findings {
				if f.Name != "version" || f.Err == nil || !strings.Contains(f.Err.Error(), tt.want) {
					t.Errorf("%v, want %q", f, tt.want)
				}
				break
			}
		})
	}
}

// script writes a shell script and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	syscall.ForkLock.RLock() // a child of another test must not have it open for writing
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { //nolint:gosec // to be run
		t.Fatal(err)
	}
	return path
}
