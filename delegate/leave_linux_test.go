package delegate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// roles are plugins that a shell script cannot be: this test binary plays them.
var roles = map[string]func(){
	// joins the process group of the test.
	"parent's group": func() {
		group, err := syscall.Getpgid(os.Getppid())
		if err == nil {
			err = syscall.Setpgid(0, group)
		}
		ready(err)
	},
	// joins the process group of its child.
	"child's group": func() {
		cmd := exec.Command("sleep", "3600")
		cmd.ExtraFiles = []*os.File{os.NewFile(3, "")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err := cmd.Start()
		if err == nil {
			err = syscall.Setpgid(0, cmd.Process.Pid)
		}
		ready(err)
	},
	// runs a plugin itself, and waits for that longer than it may.
	"meta-plugin": func() {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		ctx = delegate.WithFiles(ctx, os.NewFile(3, ""))
		_, _ = (&delegate.Process{Grace: forever}).ExecPlugin(ctx, os.Getenv("DELEGATE"), nil, nil)
	},
	// runs a plugin, and has no descriptors left to do so.
	"without descriptors": func() {
		limit := syscall.Rlimit{Cur: 10, Max: 10}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			fmt.Println(err)
		}
		for err := error(nil); err == nil; {
			_, err = syscall.Open("/dev/null", syscall.O_CLOEXEC, 0)
		}
		_, err := (&delegate.Process{}).ExecPlugin(context.Background(), "/bin/true", nil, nil)
		n, parsed := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"blue","type":"true"}`))
		iv := &delegate.Invoker{Exec: &delegate.Process{Root: "/"}, Path: []string{"/bin"}}
		_, inRoot := iv.Add(context.Background(), attach(n))
		fmt.Println((&delegate.Error{Err: err}).CNICode(), errors.Is(err, delegate.ErrNotRun), err)
		fmt.Println((&delegate.Error{Err: inRoot}).CNICode(), errors.Is(inRoot, delegate.ErrPluginNotFound), inRoot, parsed)
	},
}

func ready(err error) {
	if os.Getenv("DEAF") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	if err != nil {
		fmt.Fprintln(os.NewFile(3, ""), "cannot play the role:", err)
	}
	fmt.Fprintln(os.NewFile(3, ""), "ready")
	time.Sleep(forever)
}

func TestMain(m *testing.M) {
	if play := roles[os.Getenv("ROLE")]; play != nil {
		play()
		return
	}
	os.Exit(m.Run())
}

// playing is a script that becomes a role.
func playing(t *testing.T, role, environ string) string {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	return fmt.Sprintf("GORACE=atexit_sleep_ms=0 ROLE=%q %s exec %q", role, environ, self)
}

// A plugin that has left its process group is sent SIGTERM all the same.
func TestPluginThatLeavesItsGroupIsAskedToEnd(t *testing.T) {
	t.Parallel()
	_, _, err := run(t, &delegate.Process{Grace: forever, WaitDelay: forever}, playing(t, "parent's group", ""))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("err = %v", err)
	}
}

// A plugin that has left its process group is killed, and what it started too.
func TestPluginThatLeavesItsGroupIsKilled(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"parent's group", "child's group"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			_, _, err := run(t, &delegate.Process{Grace: time.Millisecond, WaitDelay: forever}, playing(t, role, "DEAF=1"))
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "killed") {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// A meta-plugin that is killed before it has ended its own plugins leaves none:
// what it holds, such as a lock, is free for the DEL that comes next.
func TestPluginsOfAKilledPluginAreKilled(t *testing.T) {
	t.Parallel()
	deaf := script(t, `trap '' TERM; echo ready >&3; exec sleep 3600`)
	_, _, err := run(t, &delegate.Process{Grace: time.Millisecond, WaitDelay: forever}, playing(t, "meta-plugin", "DELEGATE="+deaf))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("err = %v", err)
	}
}

// What a plugin leaves in its group when it heeds SIGTERM is killed.
func TestRestOfTheGroupIsKilled(t *testing.T) {
	t.Parallel()
	_, _, err := run(t, &delegate.Process{Grace: forever, WaitDelay: forever}, `(trap '' TERM; exec sleep 3600) &
		trap 'exit 1' TERM
		(trap '' TERM; echo ready >&3; exec sleep 3600) &
		while :; do wait; done`)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("err = %v", err)
	}
}

// Without descriptors nothing is run, and it is worth another try.
func TestWithoutDescriptorsTryAgainLater(t *testing.T) {
	t.Parallel()
	out, err := new(delegate.Process).ExecPlugin(t.Context(), script(t, playing(t, "without descriptors", "")), nil, nil)
	nodetest.OK(t, err)
	lines := strings.Split(string(out), "\n")
	want := fmt.Sprint(types.ErrTryAgainLater)
	if !strings.HasPrefix(lines[0], want+" true ") || !strings.HasPrefix(lines[1], want+" false ") {
		t.Errorf("want code %s, and a plugin that was not run but may be there:\n%s", want, out)
	}
}

// Nothing comes from the working directory: plugins are neither looked for in
// it nor run in it.
func TestWorkingDirectoryDoesNotCount(t *testing.T) {
	t.Parallel()
	root, _ := jail(t)
	for _, p := range []*delegate.Process{{}, {Root: root}} {
		for _, dir := range []string{"", ".", "opt/cni/bin", "./opt/cni/bin"} {
			nodetest.OK(t, os.WriteFile(root+"/plugin", nil, 0o755))
			got, err := p.FindInPath("plugin", []string{dir})
			if !errors.Is(err, delegate.ErrPluginNotFound) || !strings.Contains(err.Error(), "relative directories are skipped") {
				t.Errorf("in %q it is at %q: %v", dir, got, err)
			}
		}
	}
	here, err := os.Getwd()
	nodetest.OK(t, err)
	there := script(t, "pwd")
	relative, err := filepath.Rel(here, filepath.Dir(there))
	nodetest.OK(t, err)
	if got, err := new(delegate.Process).FindInPath("plugin", []string{relative}); !errors.Is(err, delegate.ErrPluginNotFound) {
		t.Errorf("in %s it is at %q: %v", relative, got, err)
	}
	if out, err := new(delegate.Process).ExecPlugin(t.Context(), there, nil, nil); string(out) != "/\n" || err != nil {
		t.Errorf("run in %q: %v", out, err)
	}
}
