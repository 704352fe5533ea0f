package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/status"
)

// What a runtime and a person see of a whole run. How Run checks what it is
// given is compared with package skel in package delegatetest.
func TestRun(t *testing.T) {
	t.Parallel()
	const conf = `{"cniVersion":"1.0.0","name":"n","type":"p"}`
	add := []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/absent", "CNI_PATH=/x"}
	p := plugin.Plugin{
		About: "CNI plugin p",
		Add: func(_ context.Context, c *plugin.Call) error {
			if c.Args == "fail=1" {
				return errors.Join(errors.New("first"), types.NewError(107, "no free device", ""))
			}
			_, err := io.WriteString(c.Stdout, c.IfName+" "+c.CNIVersion)
			return err
		},
	}
	for _, tt := range []struct {
		name           string
		env            []string
		stdin          io.Reader
		stdout, stderr string // their beginnings
		code           uint
	}{
		{"a command", add, strings.NewReader(conf), "eth0 1.0.0", "", 0},
		{"the last of a variable given twice", append(add, "CNI_IFNAME=net1"), strings.NewReader(conf), "net1 1.0.0", "", 0},
		{"an error, with all of its text", append(add, "CNI_ARGS=fail=1"), strings.NewReader(conf), `{"cniVersion":"1.0.0","code":107,"msg":"first; no free device"}`, "", 107},
		{"an unknown version", add, strings.NewReader(strings.Replace(conf, "1.0.0", "9.0.0", 1)), `{"cniVersion":"1.1.0","code":1,`, "", 1},
		{"no configuration", add, strings.NewReader(""), `{"cniVersion":"1.1.0","code":6,`, "", 6},
		{"a broken stdin", add, iotest.ErrReader(errors.New("broken pipe")), `{"cniVersion":"1.1.0","code":5,"msg":"error reading from stdin: broken pipe"}`, "", 5},
		{"an interface name that the kernel changes", append(add, "CNI_IFNAME=net%d"), strings.NewReader(conf), `{"cniVersion":"1.0.0","code":4,`, "", 4},
		{"VERSION, without stdin", []string{"CNI_COMMAND=VERSION"}, nil, `{"cniVersion":"1.1.0","supportedVersions":["0.1.0",`, "", 0},
		{"by hand", nil, nil, "", "CNI plugin p " + plugin.Version() + "\nCNI protocol versions supported: 0.1.0, ", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			err := p.Run(t.Context(), plugin.Process{Env: tt.env, Stdin: tt.stdin, Stdout: &stdout, Stderr: &stderr})
			var said *types.Error
			if errors.As(err, &said); (said != nil) != (tt.code != 0) || said != nil && said.Code != tt.code {
				t.Errorf("%v, want code %d", err, tt.code)
			}
			if !strings.HasPrefix(stdout.String(), tt.stdout) || (tt.stdout == "") != (stdout.Len() == 0) {
				t.Errorf("stdout %q, want %q", &stdout, tt.stdout)
			}
			if !strings.HasPrefix(stderr.String(), tt.stderr) || (tt.stderr == "") != (stderr.Len() == 0) {
				t.Errorf("stderr %q, want %q", &stderr, tt.stderr)
			}
		})
	}
}

// Without About, a plugin that is run by hand says that CNI_COMMAND is missing.
func TestRunByHandWithoutAbout(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	err := plugin.Plugin{}.Run(t.Context(), plugin.Process{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr})
	if status.Code(err) != types.ErrInvalidEnvironmentVariables || !strings.Contains(stdout.String(), "CNI_COMMAND") || stderr.Len() > 0 {
		t.Errorf("%v; printed %q and %q", err, &stdout, &stderr)
	}
}

// A plugin finds programs such as iptables whatever its process was given.
func TestDelegatedPluginsHaveAPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env, want []string
	}{
		{nil, []string{"PATH=" + plugin.DefaultPath}},
		{[]string{"A=b", "PATH="}, []string{"A=b", "PATH=", "PATH=" + plugin.DefaultPath}},
		{[]string{"PATH=/x"}, []string{"PATH=/x"}},
		{[]string{"PATH=/x", "PATH="}, []string{"PATH=/x", "PATH=", "PATH=" + plugin.DefaultPath}},
		{[]string{"PATH=", "PATH=/x"}, []string{"PATH=", "PATH=/x"}},
	} {
		got := plugin.Process{Env: tt.env}.NewManager("/s", "p", nil).Invoker
		if strings.Join(got.Env, " ") != strings.Join(tt.want, " ") || got.UndoTimeout != 3*time.Second {
			t.Errorf("%q: %+v", tt.env, got)
		}
	}
}

// A key in several cases has the value that Run has checked, and that libcni and
// the plugins use.
func TestKeysInSeveralCases(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ keys, name, version, dir string }{
		{`"name":"../../x","Name":"ok","cniVersion":"1.1.0"`, "ok", "1.1.0", "/a"},
		{`"NAME":"../../x","name":"ok","cniVersion":"1.1.0"`, "ok", "1.1.0", "/a"},
		{`"name":"ok","NAME":null,"cniVersion":"1.1.0"`, "ok", "1.1.0", "/a"},
		{`"name":"ok","cniVersion":"1.1.0","CNIVERSION":"0.4.0"`, "ok", "0.4.0", "/a"},
		{`"name":"ok","cniVersion":"1.1.0","STATEDIR":"/b"`, "ok", "1.1.0", "/b"},
	} {
		for _, command := range []string{"ADD", "DEL"} {
			var got *plugin.Call
			p := plugin.Plugin{StateDir: "/unused", StateKey: "stateDir", Prepare: func(c *plugin.Call) error {
				got = c
				return errors.New("enough")
			}}
			var stdout bytes.Buffer
			_ = p.Run(t.Context(), plugin.Process{
				Env:   []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/absent", "CNI_PATH=/x"},
				Stdin: strings.NewReader(`{"stateDir":"/a",` + tt.keys + `}`), Stdout: &stdout,
			})
			if command == "ADD" && strings.Contains(tt.keys, "STATEDIR") { // nobody knows which is meant
				if got != nil || !strings.Contains(stdout.String(), "stateDir") {
					t.Errorf("ADD %s: %s", tt.keys, &stdout)
				}
				continue
			}
			if got == nil {
				t.Errorf("%s %s: %s", command, tt.keys, &stdout)
				continue
			}
			if got.Name != tt.name || got.CNIVersion != tt.version || got.Manager.Dir != tt.dir {
				t.Errorf("%s %s: name %q, version %q, directory %q", command, tt.keys, got.Name, got.CNIVersion, got.Manager.Dir)
			}
		}
	}
}

// A fullPipe blocks in Write, which it announces, until it is closed.
type fullPipe struct{ writes, closed chan struct{} }

func (p *fullPipe) Write([]byte) (int, error) {
	p.writes <- struct{}{}
	<-p.closed
	return 0, io.ErrClosedPipe
}

// If the context ends while the result cannot be written, the ADD is undone, its lock is
// released, and Run returns without writing an error object.
func TestContextEndsAPluginThatWritesItsResult(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stdout := &fullPipe{make(chan struct{}), make(chan struct{})}
	defer close(stdout.closed)
	ctx, cancel := context.WithCancelCause(t.Context())
	run := func(ctx context.Context, command string, stdout io.Writer) error {
		process := n.process()
		process.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/absent", "CNI_PATH=/x"}
		process.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"small","stateDir":%q%s}`, filepath.Join(n.dir, "state"), two))
		process.Stdout = stdout
		return small().Run(ctx, process)
	}
	go func() {
		<-stdout.writes
		cancel(errors.New("terminated signal received"))
	}()
	err := run(ctx, "ADD", stdout)
	if status.Code(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "cannot print the result: context canceled: terminated signal received") {
		t.Errorf("%v", err)
	}
	want := []string{"ADD bridge eth0", "ADD macvlan net1", "DEL macvlan net1", "DEL bridge eth0"}
	if diff := cmp.Diff(want, n.exec.Trace()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if err := run(t.Context(), "ADD", io.Discard); err != nil {
		t.Errorf("the next ADD: %v", err)
	}
}

// A runtime that gives up, or a person who presses Ctrl-C, does not wait for a
// configuration that never comes.
func TestContextEndsAPluginThatWaitsForItsConfiguration(t *testing.T) {
	t.Parallel()
	stdin, configuration := io.Pipe()
	defer configuration.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated signal received"))
	var stdout bytes.Buffer
	err := plugin.Plugin{}.Run(ctx, plugin.Process{
		Env: []string{"CNI_COMMAND=STATUS", "CNI_PATH=/x"}, Stdin: stdin, Stdout: &stdout,
	})
	var said *types.Error
	if !errors.As(err, &said) || said.Code != types.ErrTryAgainLater || !strings.Contains(said.Msg, "terminated signal received") {
		t.Errorf("%v", err)
	}
}
