package delegate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// forever is longer than any test: what waits for it would not end.
const forever = time.Hour

// script writes a shell script that is a plugin, and returns its path.
func script(tb testing.TB, body string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "plugin")
	nodetest.OK(tb, os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755))
	return path
}

func withFiles(ctx context.Context, files ...*os.File) context.Context {
	return delegate.WithOptions(ctx, delegate.ProcessOptions{Files: files})
}

// pipe returns a pipe, to be handed down with withFiles.
func pipe(tb testing.TB) (r, w *os.File) {
	tb.Helper()
	r, w, err := os.Pipe()
	nodetest.OK(tb, err)
	tb.Cleanup(func() { r.Close(); w.Close() })
	if err := r.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil { // to fail and not to hang
		tb.Fatal(err)
	}
	return r, w
}

// rest reads until the last process that has inherited the other end is gone.
func rest(tb testing.TB, r *os.File) string {
	tb.Helper()
	text, err := io.ReadAll(r)
	if err != nil {
		tb.Errorf("a process is left: %v", err)
	}
	return string(text)
}

// run runs a script whose descriptor 3 is the writing end of a pipe, cancels
// the context when "ready" was written to it, and returns what else was written
// until the last holder had ended.
func run(t *testing.T, p *delegate.Process, body string) (out []byte, said string, err error) {
	t.Helper()
	r, w := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer w.Close()
		out, err = p.ExecPlugin(withFiles(ctx, w), script(t, body), []byte("{}"), []string{"PATH=" + os.Getenv("PATH")})
	})
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(r, ready); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	return out, rest(t, r), err
}

// The end of the context ends a plugin and all that it has started, wherever that is: with
// SIGTERM, and with SIGKILL after the grace period. What a meta-plugin holds, such as a lock,
// is free then for the DEL that comes next.
func TestDeadlineKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		grace           time.Duration
		body            string
		says, said, out string // in the error, to descriptor 3, and to stdout
	}{
		"deaf to SIGTERM, like its child": {grace: time.Millisecond, says: "signal: killed", body: `trap '' TERM
			sleep 3600 & # inherits stdout and descriptor 3
			echo ready >&3
			wait`},
		"says why it ends": {grace: forever, says: "undone", said: "term\n", body: `trap 'echo term >&3; echo "{\"code\":105,\"msg\":\"undone\"}"; exit 1' TERM
			sleep 3600 &
			echo ready >&3
			wait`},
		"succeeds in its grace period": {grace: forever, out: "{}\n", body: `trap 'echo "{}"; exit 0' TERM
			sleep 3600 &
			echo ready >&3
			wait`},
		"leaves others in its group": {grace: forever, says: "exit status 1", body: `(trap '' TERM; exec sleep 3600) &
			trap 'exit 1' TERM
			(trap '' TERM; echo ready >&3; exec sleep 3600) &
			while :; do wait; done`},
		"has left its group":                  {grace: forever, says: "signal: terminated", body: playing(t, "parent's group", "")},
		"has left its group, and is deaf":     {grace: time.Millisecond, says: "signal: killed", body: playing(t, "parent's group", "DEAF=1")},
		"is in its child's group, and deaf":   {grace: time.Millisecond, says: "signal: killed", body: playing(t, "child's group", "DEAF=1")},
		"is a meta-plugin whose own are deaf": {grace: time.Millisecond, says: "signal: killed", body: playing(t, "meta-plugin", "DELEGATE="+script(t, `trap '' TERM; echo ready >&3; exec sleep 3600`))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, said, err := run(t, &delegate.Process{Grace: tt.grace, WaitDelay: forever}, tt.body)
			if string(out) != tt.out || said != tt.said || (err != nil) != (tt.says != "") {
				t.Errorf("printed %q, wrote %q: %v", out, said, err)
			}
			if err != nil && (!errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), tt.says) || (&delegate.Error{Err: err}).CNICode() != types.ErrTryAgainLater) {
				t.Errorf("err = %v, want one that says %q", err, tt.says)
			}
		})
	}
}

// While an Add is undone a plugin's grace is a part of its turn.
func TestGraceIsPartOfTheTurn(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	path := script(t, `if [ "$CNI_COMMAND" = DEL ]; then trap '' TERM; echo hanging >&3; while :; do sleep 1; done; fi`)
	iv := &delegate.Invoker{Exec: &delegate.Process{Grace: forever}, Path: []string{filepath.Dir(path)}, Env: []string{"PATH=" + os.Getenv("PATH")}, UndoTimeout: time.Millisecond}
	ctx, cancel := context.WithCancel(withFiles(t.Context(), w))
	defer cancel()
	as := []delegate.Attached{added(attach(network(t, "1.0.0", "blue", "plugin")), "")}
	err := iv.Undo(ctx, as, types.NewError(105, "no device", ""))
	w.Close()
	rest(t, r)
	if status.Code(err) != 105 || !errors.Is(err, delegate.ErrNotUndone) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}

// A plugin that has exited well has succeeded, whatever its children do with its pipes.
// However short the delay, what was printed before the exit is read. The children end when
// the test lets go of descriptor 3, or when nobody listens any more.
func TestGrandchildDoesNotHoldSuccess(t *testing.T) {
	t.Parallel()
	result := `{"x":"` + strings.Repeat("x", 30000) + `"}`
	for name, body := range map[string]string{
		"holds stdout and stderr":        `(read line <&3) &`,
		"holds stdin, and does not read": `exec 5<&0; (read line <&3) <&5 >&- 2>&- &`,
		"goes on printing":               `(while echo noise >&2; do :; done) &`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold, release := pipe(t)
			r, w := pipe(t)
			var stderr bytes.Buffer
			p := &delegate.Process{WaitDelay: 1, Stderr: &stderr}
			out, err := p.ExecPlugin(withFiles(t.Context(), hold, w), script(t, "echo first >&2\n"+body+"\necho '"+result+"'"), make([]byte, 1<<20), nil)
			if err != nil || string(out) != result+"\n" || !strings.HasPrefix(stderr.String(), "first\n") {
				t.Errorf("printed %d bytes, stderr %.20q: %v", len(out), &stderr, err)
			}
			release.Close()
			w.Close()
			rest(t, r)
		})
	}
}

// doneContext counts how often it is waited on, and calls back then.
type doneContext struct {
	context.Context
	waited func()
}

func (c doneContext) Done() <-chan struct{} {
	c.waited()
	return c.Context.Done()
}

// busy returns a plugin that is open for writing, or skips the test.
func busy(t *testing.T) (path string, file *os.File) {
	t.Helper()
	path = script(t, "echo '{}'")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	nodetest.OK(t, err)
	t.Cleanup(func() { file.Close() })
	if err := exec.CommandContext(t.Context(), path).Run(); !errors.Is(err, syscall.ETXTBSY) {
		t.Skipf("needs a kernel that refuses to run a file that is being written (ETXTBSY); here: %v", err)
	}
	return path, file
}

// A busy executable is tried again until it is free, or the context ends.
func TestBusyExecutableIsRetried(t *testing.T) {
	t.Parallel()
	for _, freed := range []bool{true, false} {
		path, file := busy(t)
		ctx, cancel := context.WithCancel(t.Context())
		waits := 0
		out, err := new(delegate.Process).ExecPlugin(doneContext{ctx, func() {
			switch waits++; {
			case waits == 3 && freed:
				file.Close()
			case waits == 3:
				cancel()
			}
		}}, path, nil, nil)
		cancel()
		if freed && (err != nil || string(out) != "{}\n") || !freed && !errors.Is(err, context.Canceled) || waits < 3 {
			t.Errorf("freed %v: printed %q after waiting %d times: %v", freed, out, waits, err)
		}
	}
}

func TestProcessDoesNotRunAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := new(delegate.Process).ExecPlugin(ctx, "/bin/true", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

// A container whose network namespace does not exist is not attached to anything. Where
// not even the directory is there, the namespace may be one that this process does not
// see; the other commands must work without it.
func TestAddNeedsItsNetworkNamespace(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	nodetest.OK(t, os.WriteFile(filepath.Join(root, "ns"), nil, 0o600))
	for _, tt := range []struct {
		command, netns string
		runs           bool
	}{
		{"ADD", root + "/gone", false},
		{"ADD", root + "/ns", true},
		{"ADD", root + "/elsewhere/gone", true},
		{"ADD", "/proc/4194305/ns/net", false}, // above the highest number of a process
		{"DEL", "/proc/4194305/ns/net", true},
		{"ADD", "", true},
		{"DEL", root + "/gone", true},
		{"CHECK", root + "/gone", true},
	} {
		t.Run(tt.command+" "+strings.TrimPrefix(tt.netns, root), func(t *testing.T) {
			t.Parallel()
			out, err := new(delegate.Process).ExecPlugin(t.Context(), script(t, "echo ran"), nil, []string{"CNI_COMMAND=" + tt.command, "CNI_NETNS=" + tt.netns})
			if tt.runs {
				if err != nil || string(out) != "ran\n" {
					t.Errorf("printed %q: %v", out, err)
				}
				return
			}
			if !errors.Is(err, delegate.ErrNotRun) || status.Code(err) != types.ErrInvalidNetNS || !strings.Contains(err.Error(), tt.netns) {
				t.Errorf("printed %q: %v", out, err)
			}
		})
	}
}

// Files are handed down from descriptor 3 on, in order, and none other is.
func TestFilesAreInherited(t *testing.T) {
	t.Parallel()
	r3, w3 := pipe(t)
	r4, w4 := pipe(t)
	pipe(t) // not handed down
	ctx := withFiles(withFiles(t.Context(), w3), w4)
	out, err := new(delegate.Process).ExecPlugin(ctx, script(t, `echo three >&3; echo four >&4; if (: >&5) 2>/dev/null; then echo five; fi`), nil, nil)
	w3.Close()
	w4.Close()
	if three, four := rest(t, r3), rest(t, r4); err != nil || len(out) > 0 || three != "three\n" || four != "four\n" {
		t.Errorf("3: %q, 4: %q, stdout %q: %v", three, four, out, err)
	}
}

// A plugin without new privileges has none, and neither have its descendants. Plugins that run
// at the same moment, and later ones, keep theirs, and no thread of this process is left without.
func TestNoNewPrivs(t *testing.T) {
	t.Parallel()
	p := &delegate.Process{}
	path := script(t, `sed -n 's/^NoNewPrivs:\t//p' /proc/$$/status /proc/self/status`)
	runs := func(ctx context.Context, want string) {
		out, err := p.ExecPlugin(ctx, path, []byte("{}"), []string{"PATH=" + os.Getenv("PATH")})
		if err != nil || string(out) != want {
			t.Errorf("printed %q, %v; want %q", out, err, want)
		}
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { runs(delegate.WithOptions(t.Context(), delegate.ProcessOptions{NoNewPrivs: true}), "1\n1\n") })
		all.Go(func() { runs(t.Context(), "0\n0\n") })
	}
	all.Wait()
	runs(t.Context(), "0\n0\n")

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for left := -1; left != 0; <-tick.C { // the threads end in their own time
		files, err := filepath.Glob("/proc/self/task/*/status")
		nodetest.OK(t, err)
		left = 0
		for _, file := range files {
			if text, _ := os.ReadFile(file); strings.Contains(string(text), "NoNewPrivs:\t1") {
				left++
			}
		}
	}
}

// The end of the context reaches a plugin without new privileges.
func TestNoNewPrivsEnds(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	ctx, cancel := context.WithCancel(delegate.WithOptions(t.Context(), delegate.ProcessOptions{NoNewPrivs: true}))
	defer cancel()
	done := make(chan error)
	go func() {
		defer w.Close()
		_, err := new(delegate.Process).ExecPlugin(withFiles(ctx, w), script(t, "sleep 3600 & echo ready >&3; wait"), nil, []string{"PATH=" + os.Getenv("PATH")})
		done <- err
	}()
	_, err := io.ReadFull(r, make([]byte, len("ready\n")))
	nodetest.OK(t, err)
	cancel()
	nodetest.Is(t, <-done, context.Canceled)
	nodetest.Equal(t, "said by what is left", rest(t, r), "")
	_, err = new(delegate.Process).ExecPlugin(delegate.WithOptions(t.Context(), delegate.ProcessOptions{NoNewPrivs: true}), "/absent", nil, nil)
	if !errors.Is(err, delegate.ErrNotRun) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// An empty environment is empty; this process's own is never passed on.
func TestEmptyEnvironmentIsEmpty(t *testing.T) {
	t.Parallel()
	env, err := exec.LookPath("env")
	if err != nil {
		t.Skipf("needs env(1): %v", err)
	}
	for _, environ := range [][]string{nil, {}} {
		out, err := new(delegate.Process).ExecPlugin(t.Context(), env, nil, environ)
		if err != nil || len(out) > 0 {
			t.Errorf("environment %q: %v", out, err)
		}
	}
	out, err := new(delegate.Process).ExecPlugin(t.Context(), env, nil, []string{"A=1", "B=2"})
	if err != nil || string(out) != "A=1\nB=2\n" {
		t.Errorf("environment %q: %v", out, err)
	}
}

// A binary that cannot be started has done nothing: nothing is undone, and
// nothing is left for a DEL that could not work either.
func TestBinaryThatCannotBeStartedIsNotUndone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nodetest.OK(t, os.WriteFile(dir+"/broken", []byte("\x7fELF half a file"), 0o755))
	good := `[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0"}'; echo $CNI_COMMAND >&3`
	nodetest.OK(t, os.WriteFile(dir+"/good", []byte("#!/bin/sh\n"+good), 0o755))
	r, w := pipe(t)
	iv := &delegate.Invoker{Path: []string{dir}} // a nil Exec is a Process
	_, err := iv.Add(withFiles(t.Context(), w), attach(network(t, "1.0.0", "blue", "good", "broken")))
	w.Close()
	nodetest.Equal(t, "good ran", rest(t, r), "ADD\nDEL\n")
	if !errors.Is(err, syscall.ENOEXEC) || errors.Is(err, delegate.ErrNotUndone) {
		t.Errorf("err = %v", err)
	}
}

// A plugin that prints without end is stopped; so is one that then exits well.
func TestStdoutIsCapped(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"without end":    `exec cat /dev/zero`,
		"and exits well": `trap 'exit 0' TERM PIPE; head -c 4194305 /dev/zero; exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := new(delegate.Process).ExecPlugin(t.Context(), script(t, body), nil, nil)
			nodetest.Says(t, err, "more than 4194304 bytes on stdout")
		})
	}
	most := strings.Repeat("x", 4<<20)
	out, err := new(delegate.Process).ExecPlugin(t.Context(), "/bin/cat", []byte(most), nil)
	if err != nil || string(out) != most {
		t.Errorf("%d bytes of 4 MiB came back: %v", len(out), err)
	}
}

// closer lets go of a file when a line has come.
type closer struct {
	lines bytes.Buffer
	file  *os.File
}

func (c *closer) Write(b []byte) (int, error) {
	c.lines.Write(b)
	if bytes.Contains(c.lines.Bytes(), []byte("\n")) {
		c.file.Close()
	}
	return 0, io.ErrClosedPipe // that is none of the plugin's concern
}

// Stderr is passed on while the plugin runs: this one only ends when it was.
func TestStderrIsStreamed(t *testing.T) {
	t.Parallel()
	hold, release := pipe(t)
	stderr := &closer{file: release}
	out, err := (&delegate.Process{Stderr: stderr}).ExecPlugin(withFiles(t.Context(), hold), script(t, `
		echo working >&2
		read line <&3
		echo '{}'`), nil, nil)
	if err != nil || string(out) != "{}\n" || stderr.lines.String() != "working\n" {
		t.Errorf("printed %q, stderr %q: %v", out, &stderr.lines, err)
	}
}

func TestStderrIsCapped(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	input := bytes.Repeat([]byte("0123456789abcde\n"), 1<<17) // 2 MiB
	_, err := (&delegate.Process{Stderr: &stderr}).ExecPlugin(t.Context(), script(t, `cat >&2; echo done >&2; exit 4`), input, []string{"PATH=" + os.Getenv("PATH")})
	nodetest.Equal(t, "bytes passed on", stderr.Len(), 1<<20)
	nodetest.Says(t, err, `exit status 4, without an error object on stdout; last line on stderr: "done"`)
}

// A stderr that nobody takes is waited for no longer than WaitDelay.
func TestBlockedStderrDoesNotBlock(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe() // nobody reads
	defer r.Close()
	out, err := (&delegate.Process{Stderr: w, WaitDelay: 1}).ExecPlugin(t.Context(), script(t, `echo hello >&2; echo '{}'`), nil, nil)
	if err != nil || string(out) != "{}\n" {
		t.Errorf("printed %q: %v", out, err)
	}
}

// What a plugin says when it fails is kept; what it was given is not.
func TestErrorOfAProcessSaysWhatThePluginSaid(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	conf := `{"name":"blue","type":"p","password":"` + secret + `","long":"` + long + `","nested":{"key":"` + secret + `2"}}`
	tests := []struct {
		name, body string
		code       uint
		want       string // in the text
	}{
		{"error object", `echo '{"code":105,"msg":"no device","details":"8 in use"}'; exit 1`, 105, "no device"},
		{"error object after noise", `echo loading; echo '{}'; printf '{\n  "code": 105,\n  "msg": "no device"\n}\n'; exit 1`, 105, "no device"},
		{"error object without a code", `echo '{"msg":"no device"}'; exit 1`, 0, "no device"},
		{"error object without words", `echo '{"code":105}'; exit 1`, 105, ""},
		{"empty object", `echo '{}'; exit 1`, 0, "exit status 1, without an error object on stdout"},
		{"nothing", `exit 3`, 0, "exit status 3, without an error object on stdout"},
		{"words on stderr", `echo first >&2; echo 'cannot open device' >&2; exit 3`, 0, `last line on stderr: "cannot open device"`},
		{"signal", `kill -9 $$`, 0, "signal: killed"},
		{"configuration on stderr", `cat >&2; exit 3`, 0, "exit status 3"},
		{"words and configuration on stderr", `printf 'cannot parse ' >&2; cat >&2; exit 3`, 0, "exit status 3"},
		{"secret on stderr", `echo "password=` + secret + ` is wrong" >&2; exit 3`, 0, `"password=(hidden) is wrong"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := new(delegate.Process).ExecPlugin(t.Context(), script(t, tt.body), []byte(conf), []string{"PATH=" + os.Getenv("PATH")})
			if got := (&delegate.Error{Err: err}).CNICode(); got != tt.code || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("code %d, want %d and %q: %v", got, tt.code, tt.want, err)
			}
			for _, text := range tree(err) {
				if leaks(text) || strings.Contains(text, "xxxx") {
					t.Errorf("a secret is in %q", text)
				}
			}
		})
	}
}

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
		ctx = withFiles(ctx, os.NewFile(3, ""))
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

func TestFindInPath(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{one + "/plain": 0o644, two + "/plain": 0o755, one + "/both": 0o755, two + "/both": 0o755} {
		nodetest.OK(t, os.WriteFile(path, []byte("x"), mode))
	}
	nodetest.OK(t, errors.Join(os.Mkdir(one+"/dir", 0o755), os.Symlink(two+"/plain", one+"/link")))
	p := new(delegate.Process)
	for plugin, want := range map[string]string{
		"both": one + "/both", "plain": two + "/plain", "link": one + "/link",
		"dir": "", "absent": "", "": "", "../" + filepath.Base(one) + "/both": "", "a\x00b": "",
	} {
		got, err := p.FindInPath(plugin, []string{"", one + "/", "/does/not/exist", two})
		if got != want || (want == "") != errors.Is(err, delegate.ErrPluginNotFound) {
			t.Errorf("%q is at %q, want %q (%v)", plugin, got, want, err)
		}
	}
	if _, err := p.FindInPath("plain", []string{one, "/does/not/exist"}); err == nil || !strings.Contains(err.Error(), one+"/plain is not a file that can be executed") {
		t.Errorf("not executable: %v", err)
	}
	if _, err := (&delegate.Process{Root: "/does/not/exist"}).FindInPath("both", []string{one}); !errors.Is(err, delegate.ErrPluginNotFound) {
		t.Errorf("no root: %v", err)
	}
}

// jail is a root directory with a shell, a plugin, and links that point out.
func jail(t *testing.T) (root, outside string) {
	t.Helper()
	root, outside = t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)))
	}
	write(root+"/opt/cni/bin/plugin", "#!/bin/sh\nread who </who; echo \"{\\\"who\\\":\\\"$who\\\",\\\"in\\\":\\\"$(pwd)\\\"}\"\n")
	write(root+"/who", "jail\n")
	write(outside+"/escaped", "#!/bin/sh\necho outside\n")
	for link, target := range map[string]string{
		"absolute": "/opt/cni/bin/plugin", // of the root, not of the host
		"upwards":  "../../../../../../../../../../../../../../opt/cni/bin/plugin",
		"file":     outside + "/escaped",
		"relative": "../../../../../../../../../../../../../../" + outside + "/escaped",
	} {
		nodetest.OK(t, os.Symlink(target, root+"/opt/cni/bin/"+link))
	}
	nodetest.OK(t, os.Symlink(outside, root+"/opt/cni/dir"))
	return root, outside
}

// No link leads out of the root.
func TestNoLinkLeadsOutOfTheRoot(t *testing.T) {
	t.Parallel()
	root, outside := jail(t)
	p := &delegate.Process{Root: root}
	for _, name := range []string{"plugin", "absolute", "upwards"} {
		if got, err := p.FindInPath(name, []string{"/opt/cni/bin"}); err != nil || got != "/opt/cni/bin/"+name {
			t.Errorf("%s is at %q: %v", name, got, err)
		}
	}
	for _, name := range []string{"file", "relative", "escaped"} {
		for _, dir := range []string{"/opt/cni/bin", "/opt/cni/dir", outside, "/.." + outside} {
			if got, err := p.FindInPath(name, []string{dir}); !errors.Is(err, delegate.ErrPluginNotFound) {
				t.Errorf("%s in %s is at %q: %v", name, dir, got, err)
			}
		}
	}
}
