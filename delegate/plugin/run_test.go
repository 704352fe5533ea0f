package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
			_, err := io.WriteString(c.System.Stdout, c.IfName+" "+c.CNIVersion)
			return err
		},
	}
	mute := p
	mute.About = ""
	for name, tt := range map[string]struct {
		p              plugin.Plugin
		env            []string
		stdin          io.Reader
		stdout, stderr string // their beginnings
		code           uint
	}{
		"the last of a variable given twice":        {p, append(add, "CNI_IFNAME=net1"), strings.NewReader(conf), "net1 1.0.0", "", 0},
		"an error, with all of its text":            {p, append(add, "CNI_ARGS=fail=1"), strings.NewReader(conf), `{"cniVersion":"1.0.0","code":107,"msg":"first; no free device"}`, "", 107},
		"an unknown version":                        {p, add, strings.NewReader(strings.Replace(conf, "1.0.0", "9.0.0", 1)), `{"cniVersion":"1.1.0","code":1,`, "", 1},
		"no configuration":                          {p, add, strings.NewReader(""), `{"cniVersion":"1.1.0","code":6,`, "", 6},
		"a broken stdin":                            {p, add, iotest.ErrReader(errors.New("broken pipe")), `{"cniVersion":"1.1.0","code":5,"msg":"error reading from stdin: broken pipe"}`, "", 5},
		"an interface name that the kernel changes": {p, append(add, "CNI_IFNAME=net%d"), strings.NewReader(conf), `{"cniVersion":"1.0.0","code":4,`, "", 4},
		"VERSION, without stdin":                    {p, []string{"CNI_COMMAND=VERSION"}, nil, `{"cniVersion":"1.1.0","supportedVersions":["0.1.0",`, "", 0},
		"by hand":                                   {p, nil, nil, "", "CNI plugin p " + plugin.Version() + "\nCNI protocol versions supported: 0.1.0, ", 0},
		"by hand, without About":                    {mute, nil, strings.NewReader(""), `{"cniVersion":"1.1.0","code":4,"msg":"required env variables [CNI_COMMAND]`, "", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			nodetest.Code(t, tt.p.Run(t.Context(), plugin.System{Env: tt.env, Stdin: tt.stdin, Stdout: &stdout, Stderr: &stderr}), tt.code)
			if !strings.HasPrefix(stdout.String(), tt.stdout) || (tt.stdout == "") != (stdout.Len() == 0) {
				t.Errorf("stdout %q, want %q", &stdout, tt.stdout)
			}
			if !strings.HasPrefix(stderr.String(), tt.stderr) || (tt.stderr == "") != (stderr.Len() == 0) {
				t.Errorf("stderr %q, want %q", &stderr, tt.stderr)
			}
		})
	}
}

// A plugin finds programs such as iptables whatever its process was given.
func TestDelegatedPluginsHaveAPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ env, want []string }{
		{nil, []string{"PATH=" + plugin.DefaultPath}},
		{[]string{"A=b", "PATH="}, []string{"A=b", "PATH=", "PATH=" + plugin.DefaultPath}},
		{[]string{"PATH=/x", "PATH="}, []string{"PATH=/x", "PATH=", "PATH=" + plugin.DefaultPath}},
		{[]string{"PATH=", "PATH=/x"}, []string{"PATH=", "PATH=/x"}},
	} {
		got := plugin.System{Env: tt.env}.NewManager("/s", "p", nil).Invoker
		nodetest.Equal(t, "environment", got.Env, tt.want)
		nodetest.Equal(t, "time to undo", got.UndoTimeout, 3*time.Second)
	}
}

// A key in several cases has the value that Run has checked, and that libcni and
// the plugins use.
func TestKeysInSeveralCases(t *testing.T) {
	t.Parallel()
	const unclear = "nobody knows which is meant"
	for _, tt := range []struct{ command, keys, want string }{
		{"ADD", `"name":"../../x","Name":"ok","cniVersion":"1.1.0"`, "ok 1.1.0 /a"},
		{"ADD", `"NAME":"../../x","name":"ok","cniVersion":"1.1.0"`, "ok 1.1.0 /a"},
		{"DEL", `"name":"ok","NAME":null,"cniVersion":"1.1.0"`, "ok 1.1.0 /a"},
		{"ADD", `"name":"ok","cniVersion":"1.1.0","CNIVERSION":"0.4.0"`, "ok 0.4.0 /a"},
		{"DEL", `"name":"ok","cniVersion":"1.1.0","STATEDIR":"/b"`, "ok 1.1.0 /b"},
		{"ADD", `"name":"ok","cniVersion":"1.1.0","STATEDIR":"/b"`, unclear},
	} {
		got := unclear
		p := plugin.Plugin{StateDir: "/unused", StateKey: "stateDir", Prepare: func(c *plugin.Call) error {
			got = c.Name + " " + c.CNIVersion + " " + c.Manager.Dir
			return errors.New("enough")
		}}
		var stdout bytes.Buffer
		_ = p.Run(t.Context(), plugin.System{
			Env:   []string{"CNI_COMMAND=" + tt.command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/absent", "CNI_PATH=/x"},
			Stdin: strings.NewReader(`{"stateDir":"/a",` + tt.keys + `}`), Stdout: &stdout,
		})
		nodetest.Equal(t, tt.command+" "+tt.keys, got, tt.want)
		nodetest.Equal(t, "it says so", strings.Contains(stdout.String(), "stateDir"), got == unclear)
	}
}

// A fullPipe blocks in Write, which it announces, until it is closed.
type fullPipe struct{ writes, closed chan struct{} }

func (p *fullPipe) Write([]byte) (int, error) {
	p.writes <- struct{}{}
	<-p.closed
	return 0, io.ErrClosedPipe
}

func (p *fullPipe) Close() error {
	close(p.closed)
	return nil
}

// If the context ends while the result cannot be written, the ADD is undone, its lock is
// released, and Run returns without writing an error object.
func TestContextEndsAPluginThatWritesItsResult(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stdout := &fullPipe{make(chan struct{}), make(chan struct{})}
	defer stdout.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	process := n.process()
	process.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/absent", "CNI_PATH=/x"}
	process.Stdin, process.Stdout = bytes.NewReader(n.call(two).StdinData), stdout
	go func() {
		<-stdout.writes
		cancel(errors.New("terminated signal received"))
	}()
	nodetest.Fails(t, small().Run(ctx, process), types.ErrTryAgainLater, "cannot print the result: context canceled: terminated signal received")
	n.WantTrace("ADD bridge eth0", "ADD macvlan net1", "DEL macvlan net1", "DEL bridge eth0")
	nodetest.OK(t, n.do(small(), "ADD", two))
}

// A memory is a stdin and stdout in memory that is slow: its context ends before it does.
type memory struct {
	bytes.Buffer
	end context.CancelFunc
}

func (m *memory) Write(b []byte) (int, error) {
	m.end()
	time.Sleep(time.Hour)
	return m.Buffer.Write(b)
}

func (m *memory) Read(b []byte) (int, error) {
	m.end()
	time.Sleep(time.Hour)
	return m.Buffer.Read(b)
}

// Memory that Run reads or writes is the caller's again when Run returns, also if the
// context has ended meanwhile.
func TestNothingUsesMemoryAfterRunHasReturned(t *testing.T) {
	t.Parallel()
	t.Run("stdout", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			stdout := memory{end: cancel}
			err := plugin.Plugin{}.Run(ctx, plugin.System{Env: []string{"CNI_COMMAND=VERSION"}, Stdout: &stdout})
			nodetest.OK(t, err)
			nodetest.Equal(t, "Run has written", stdout.Len() > 0, true)
		})
	})
	t.Run("stdin", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			stdin := memory{end: cancel}
			stdin.WriteString("{}")
			_ = plugin.Plugin{}.Run(ctx, plugin.System{Env: []string{"CNI_COMMAND=STATUS", "CNI_PATH=/x"}, Stdin: &stdin, Stdout: io.Discard})
			nodetest.Equal(t, "bytes that Run has not read", stdin.Len(), 0)
		})
	})
}

// A runtime that gives up, or a person who presses Ctrl-C, does not wait for a
// configuration that never comes.
func TestContextEndsAPluginThatWaitsForItsConfiguration(t *testing.T) {
	t.Parallel()
	stdin, configuration := io.Pipe()
	defer configuration.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated signal received"))
	err := plugin.Plugin{}.Run(ctx, plugin.System{Env: []string{"CNI_COMMAND=STATUS", "CNI_PATH=/x"}, Stdin: stdin, Stdout: io.Discard})
	nodetest.Fails(t, err, types.ErrTryAgainLater, "terminated signal received")
}

// depthKey is the key of the depth of a stage or invocation in its context.
type depthKey struct{}

// stages notes what begins, with a space for each stage that it is in, and which of it fails.
type stages struct {
	lines  []string
	events []delegate.Event // of the stages of the whole operation
}

func (s *stages) begin(ctx context.Context, what string) (context.Context, func(error)) {
	depth, _ := ctx.Value(depthKey{}).(int)
	at := len(s.lines)
	s.lines = append(s.lines, strings.Repeat(" ", depth)+what)
	return context.WithValue(ctx, depthKey{}, depth+1), func(err error) {
		if err != nil {
			s.lines[at] += " failed"
		}
	}
}

func (s *stages) process(p plugin.System) plugin.System {
	p.Observer = func(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
		return s.begin(ctx, string(e.Command)+" "+e.Plugin)
	}
	p.Stages = func(ctx context.Context, stage delegate.Stage, e delegate.Event) (context.Context, func(error)) {
		if stage != delegate.StageUndo {
			s.events = append(s.events, e)
		}
		return s.begin(ctx, string(stage))
	}
	return p
}

// attaching is small, and attaches "more" as net9 when it has the argument MORE.
func attaching() plugin.Plugin {
	p := small()
	p.Add = func(ctx context.Context, c *plugin.Call) error {
		if !strings.Contains(c.Args, "MORE") {
			nets, err := p.Networks(ctx, c)
			if err != nil {
				return err
			}
			as, err := c.Attachments(nets...)
			if err != nil {
				return err
			}
			return c.Add(ctx, lifecycle.Transaction{Plan: c.Plan(as...)})
		}
		more := c.Attachment(nodetest.Network("more", "macvlan"))
		more.IfName = "net9"
		_, err := c.Manager.Attach(ctx, c.Key(), lifecycle.Transaction{Plan: lifecycle.Plan(more)})
		return err
	}
	return p
}

func TestStagesAreToldInOrderAndNested(t *testing.T) {
	t.Parallel()
	const valid = `,"cni.dev/valid-attachments":[`
	for name, tt := range map[string]struct {
		added   bool
		fail    bool // whether macvlan fails
		command delegate.Command
		keys    string
		args    string
		want    string
	}{
		"ADD":                 {command: "ADD", want: "command, lock, record, ADD bridge, record, ADD macvlan, record"},
		"ADD that fails":      {fail: true, command: "ADD", want: "command failed, lock, record, ADD bridge, record, ADD macvlan failed, undo,  DEL macvlan, record,  DEL bridge, record"},
		"ADD that is refused": {added: true, command: "ADD", want: "command failed, lock"},
		"DEL":                 {added: true, command: "DEL", want: "command, lock, record, DEL macvlan, record, DEL bridge, record"},
		"DEL of nothing":      {command: "DEL", want: "command"},
		"CHECK":               {added: true, command: "CHECK", want: "command, lock, CHECK bridge, CHECK macvlan"},
		"GC":                  {added: true, command: "GC", keys: valid + `]`, want: "command, lock, record, DEL macvlan, record, DEL bridge, record, GC bridge, GC macvlan"},
		"GC without garbage":  {added: true, command: "GC", keys: valid + `{"containerID":"c1","ifname":"eth0"}]`, want: "command, GC bridge, GC macvlan"},
		"STATUS":              {command: "STATUS", want: "command, STATUS bridge, STATUS macvlan"},
		"attach that fails":   {added: true, fail: true, command: "ADD", args: "MORE=1", want: "command failed, lock, record, ADD macvlan failed, undo,  DEL macvlan, record"},
		"a mistake":           {command: "ADD", keys: `,"runtimeConfig":5`, want: "command failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if tt.added {
				nodetest.OK(t, n.do(attaching(), "ADD", two))
			}
			if tt.fail {
				n.FailOn("ADD macvlan", 101)
			}
			var s stages
			n.args = tt.args
			_ = attaching().Do(t.Context(), s.process(n.process()), tt.command, n.call(two+tt.keys)) // the stages say how it ended
			for i := range s.lines[1:] {                                                             // all are in the command
				s.lines[1+i] = strings.TrimPrefix(s.lines[1+i], " ")
			}
			nodetest.Equal(t, "stages", strings.Join(s.lines, ", "), tt.want)
			for _, e := range s.events {
				nodetest.Equal(t, "event", e, delegate.Event{Command: tt.command, Network: "n", ContainerID: "c1", IfName: "eth0"})
			}
		})
	}
}

// A command that panics has not succeeded.
func TestStageOfACommandThatPanics(t *testing.T) {
	t.Parallel()
	var s stages
	func() {
		defer func() { _ = recover() }()
		_ = plugin.Plugin{Check: func(context.Context, *plugin.Call) error { panic("no") }}.Do(t.Context(), s.process(plugin.System{}), "CHECK", skel.CmdArgs{})
	}()
	nodetest.Equal(t, "stages", s.lines, []string{"command failed"})
}

// A step that runs in this process is an invocation, and not a command too.
func TestStepIsNoCommand(t *testing.T) {
	t.Parallel()
	n, _, p := fenced(t)
	for keys, want := range map[string]string{
		two:              "command, STATUS bridge, STATUS small/rule, STATUS macvlan, STATUS small/rule",
		`,"step":"rule"`: "command", // in its own process
	} {
		var s stages
		nodetest.OK(t, p.Do(t.Context(), s.process(n.process()), "STATUS", n.call(keys)))
		nodetest.Equal(t, "stages", strings.Join(s.lines, ","), want)
	}
}
