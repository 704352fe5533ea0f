package plugin_test

import (
	"context"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

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

func (s *stages) process(p plugin.Process) plugin.Process {
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
	added := []string{"ADD"}
	for name, tt := range map[string]struct {
		before  []string // commands
		fail    bool     // whether macvlan fails
		command delegate.Command
		keys    string
		args    string
		want    string
	}{
		"ADD":                 {command: "ADD", want: "command, lock, record, ADD bridge, record, ADD macvlan, record"},
		"ADD that fails":      {fail: true, command: "ADD", want: "command failed, lock, record, ADD bridge, record, ADD macvlan failed, undo,  DEL macvlan, record,  DEL bridge, record"},
		"ADD that is refused": {before: added, command: "ADD", want: "command failed, lock"},
		"DEL":                 {before: added, command: "DEL", want: "command, lock, record, DEL macvlan, record, DEL bridge, record"},
		"DEL of nothing":      {command: "DEL", want: "command"},
		"CHECK":               {before: added, command: "CHECK", want: "command, lock, CHECK bridge, CHECK macvlan"},
		"GC":                  {before: added, command: "GC", keys: valid + `]`, want: "command, lock, record, DEL macvlan, record, DEL bridge, record, GC bridge, GC macvlan"},
		"GC without garbage":  {before: added, command: "GC", keys: valid + `{"containerID":"c1","ifname":"eth0"}]`, want: "command, GC bridge, GC macvlan"},
		"STATUS":              {command: "STATUS", want: "command, STATUS bridge, STATUS macvlan"},
		"attach":              {before: added, command: "ADD", args: "MORE=1", want: "command, lock, record, ADD macvlan, record"},
		"attach that fails":   {before: added, fail: true, command: "ADD", args: "MORE=1", want: "command failed, lock, record, ADD macvlan failed, undo,  DEL macvlan, record"},
		"a mistake":           {command: "ADD", keys: `,"runtimeConfig":5`, want: "command failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			do := func(process plugin.Process, command delegate.Command, keys, args string) error {
				return attaching().Do(t.Context(), process, command, skel.CmdArgs{
					ContainerID: "c1", IfName: "eth0", Netns: "/absent", Args: args, StdinData: []byte(
						`{"cniVersion":"1.1.0","name":"n","type":"small","stateDir":"` + n.dir + `/state"` + two + keys + `}`),
				})
			}
			for _, command := range tt.before {
				nodetest.OK(t, do(n.process(), delegate.Command(command), "", ""))
			}
			if ok := n.exec.Plugins["macvlan"]; tt.fail {
				n.exec.Plugins["macvlan"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
					if c.Command == "ADD" {
						return nil, types.NewError(101, "no", "")
					}
					return ok(ctx, c)
				}
			}
			var s stages
			_ = do(s.process(n.process()), tt.command, tt.keys, tt.args) // the stages say how it ended
			for i := range s.lines[1:] {                                 // all are in the command
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
		_ = plugin.Plugin{Check: func(context.Context, *plugin.Call) error { panic("no") }}.Do(t.Context(), s.process(plugin.Process{}), "CHECK", skel.CmdArgs{})
	}()
	nodetest.Equal(t, "stages", s.lines, []string{"command failed"})
}

// A step that runs in this process is an invocation, and not a command too.
func TestStepIsNoCommand(t *testing.T) {
	t.Parallel()
	n, _, p := fenced(t)
	var s stages
	nodetest.OK(t, p.Do(t.Context(), s.process(n.process()), "STATUS", skel.CmdArgs{
		StdinData: []byte(`{"cniVersion":"1.1.0","name":"n","type":"small","stateDir":"` + n.dir + `"` + two + `}`),
	}))
	nodetest.Equal(t, "stages", strings.Join(s.lines, ","), "command, STATUS bridge, STATUS small/rule, STATUS macvlan, STATUS small/rule")
	s = stages{}
	nodetest.OK(t, p.Do(t.Context(), s.process(n.process()), "STATUS", skel.CmdArgs{
		StdinData: []byte(`{"cniVersion":"1.1.0","name":"n","type":"small","step":"rule"}`),
	}))
	nodetest.Equal(t, "stages of its own process", s.lines, []string{"command"})
}
