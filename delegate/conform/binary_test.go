package conform_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// programs holds the plugins that the test binary can be, by the name of the
// executable.
var programs = map[string]func(){
	"skel": skelMain, "meta": metaMain, "meta-skel": metaSkelMain, "meta-cheerful": metaCheerfulMain, "meta-silent": metaSilentMain, "meta-other": metaOtherMain, "meta-deaf": metaDeafMain,
}

func TestMain(m *testing.M) {
	if program := programs[filepath.Base(os.Args[0])]; program != nil {
		program()
		os.Exit(0)
	}
	// The checks make many small files: in memory, where there is a directory for that.
	dir, err := os.MkdirTemp("/dev/shm", "conform-")
	if err == nil {
		_ = os.Setenv("TMPDIR", dir)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// executable returns the path of the test binary under another name.
func executable(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	path := filepath.Join(t.TempDir(), name)
	nodetest.OK(t, os.Symlink(self, path))
	return path
}

func metaFuncs() skel.CNIFuncs {
	return newMeta()(context.Background(), &delegate.Process{Stderr: os.Stderr}, os.Environ(), os.Stdout)
}

// metaRun runs a meta and returns its error, with the configuration's version.
func metaRun() (string, *types.Error) {
	conf := struct{ CNIVersion string }{}
	funcs := metaFuncs()
	add := funcs.Add
	funcs.Add = func(args *skel.CmdArgs) error {
		_ = json.Unmarshal(args.StdinData, &conf)
		return add(args)
	}
	err := skel.PluginMainFuncsWithError(funcs, version.All, "")
	return cmp.Or(conf.CNIVersion, "1.1.0"), err
}

// metaMain is a main without a flaw.
func metaMain() {
	if v, err := metaRun(); err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": v, "code": err.Code, "msg": err.Msg})
		os.Exit(1)
	}
}

func metaSkelMain() { skel.PluginMainFuncs(metaFuncs(), version.All, "") }

// metaCheerfulMain exits with status 0 whatever happened.
func metaCheerfulMain() {
	if _, err := metaRun(); err != nil {
		_ = err.Print()
	}
}

// metaDeafMain drops what its delegates write to stderr.
func metaDeafMain() {
	skel.PluginMainFuncs(newMeta()(context.Background(), &delegate.Process{}, os.Environ(), os.Stdout), version.All, "")
}

// metaSilentMain prints its errors to stderr only.
func metaSilentMain() {
	if _, err := metaRun(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// metaOtherMain prints its errors in a form of its own.
func metaOtherMain() {
	if _, err := metaRun(); err != nil {
		fmt.Println(`{"error":"it did not work","cniVersion":"9.0.0"}`)
		os.Exit(1)
	}
}

func binary(path string) conform.Binary {
	return conform.Binary{Path: path, Env: []string{"GOCOVERDIR=" + filepath.Dir(path)}}
}

func TestFlawsOfAMainAreFound(t *testing.T) {
	t.Parallel()
	// These checks tell the mains apart; the others take longer.
	conf := onlyChecks(t, "version", "add", "stderr", "undo-killed", "error", "error-version", "code", "del")
	for name, want := range map[string][]string{
		"meta":          nil,
		"meta-skel":     {"error-version"},
		"meta-cheerful": {"undo-killed", "error"},
		"meta-silent":   {"error"},
		"meta-deaf":     {"stderr", "error-version"},
		"meta-other":    {"error"},
		"absent":        {"version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), name)
			if name != "absent" {
				path = executable(t, name)
			}
			r := check(t, binary(path), conf, want...)
			nodetest.Equal(t, "what to do about errors without a version", strings.Contains(r.text(), "skel.PluginMainFuncsWithError"), slices.Contains([]string{"meta-skel", "meta-deaf"}, name))
		})
	}
}

// With the race detector too the executable and its delegates end at once.
func TestBinaryDoesNotWaitForTheRaceDetector(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{"by itself", nil, "GORACE=atexit_sleep_ms=0"},
		{"unless told", []string{"GORACE=halt_on_error=1"}, "GORACE=halt_on_error=1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plugin := binary(executable(t, "meta"))
			plugin.Env = append(plugin.Env, tt.env...)
			var mu sync.Mutex
			seen := make(map[string]bool)
			fake := func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
				mu.Lock()
				defer mu.Unlock()
				for _, kv := range c.Env {
					if strings.HasPrefix(kv, "GORACE=") {
						seen[kv] = true
					}
				}
				return delegatetest.Result(nil)(ctx, c)
			}
			conf := onlyChecks(t, "add")
			conf.Fakes = map[string]delegatetest.Fake{"one": fake, "two": fake}
			conform.Test(t, plugin, conf)
			nodetest.Equal(t, "environment", seen, map[string]bool{tt.want: true})
		})
	}
}

// onlyChecks returns the configuration of a meta that skips all other checks.
func onlyChecks(t *testing.T, some ...string) conform.Config {
	t.Helper()
	conf := metaConfig
	conf.Skip = make(map[string]string)
	for _, name := range names() {
		if !slices.Contains(some, name) {
			conf.Skip[name] = "not asked for"
		}
	}
	return conf
}

// The path of a socket must be short; a temporary directory may have a long one.
func TestBinaryWorksInALongDirectory(t *testing.T) { //nolint:paralleltest // sets TMPDIR
	t.Setenv("TMPDIR", t.TempDir()+strings.Repeat("/a-long-name", 10))
	nodetest.OK(t, os.MkdirAll(os.TempDir(), 0o700))
	conform.Test(t, binary(executable(t, "meta")), onlyChecks(t, "add", "del"))
}

func TestDelegateWhoseTestIsGoneEnds(t *testing.T) {
	t.Parallel()
	path := executable(t, "one")
	nodetest.OK(t, os.WriteFile(filepath.Join(filepath.Dir(path), "conform.sock"), nil, 0o600))
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Env = binary(path).Env
	if out, err := cmd.Output(); err == nil || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("said %q: %v", out, err)
	}
}
