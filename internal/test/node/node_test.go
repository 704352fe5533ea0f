package nodetest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A node knows what its plugins did, and which calls a test holds up or lets fail.
func TestNode(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t, "bridge", "tuning")
	iv := &delegate.Invoker{Exec: n.Exec}
	a := delegate.Attachment{Network: nodetest.Network("blue", "bridge", "tuning"), ContainerID: "c2", IfName: "eth0", NetNS: "/absent"}

	begun, open := n.Gate("ADD bridge")
	n.FailOn("ADD tuning", 107)
	result := make(chan error, 1)
	go func() {
		_, err := iv.Add(t.Context(), a)
		result <- err
	}()
	nodetest.Come(t, begun, "the ADD")
	nodetest.Equal(t, "attachments", n.Exec.Live(), []string{"bridge c2 eth0"})
	open()
	err := nodetest.Come(t, result, "the answer")
	nodetest.Code(t, err, 107)
	nodetest.Says(t, err, "blue", "tuning")
	n.WantTrace("ADD bridge eth0 of c2", "ADD tuning eth0 of c2", "DEL tuning eth0 of c2", "DEL bridge eth0 of c2")
	n.WantTrace()
	n.WantNothing("state")

	n.Write("state/c1/file", "text")
	nodetest.Equal(t, "text", n.Read("state/c1/file"), "text")
	nodetest.Equal(t, "files", n.Files("state"), []string{"c1", "c1/file"})
	nodetest.Equal(t, "name", nodetest.Stdin(t, n.Last("ADD bridge"))["name"], any("blue"))
}

// The checks fail when they should.
func TestChecksFail(t *testing.T) {
	t.Parallel()
	failed := errors.Join(types.NewError(7, "no such plugin", ""))
	for name, check := range map[string]func(*nodetest.Node){
		"error":       func(n *nodetest.Node) { nodetest.OK(n, failed) },
		"other code":  func(n *nodetest.Node) { nodetest.Code(n, failed, 11) },
		"other text":  func(n *nodetest.Node) { nodetest.Says(n, failed, "plugin", "network") },
		"no error":    func(n *nodetest.Node) { nodetest.Says(n, nil, "plugin") },
		"other value": func(n *nodetest.Node) { nodetest.Equal(n, "value", 1, 2) },
		"no call":     func(n *nodetest.Node) { n.WantTrace("ADD bridge eth0") },
		"file":        func(n *nodetest.Node) { n.Write("f", ""); n.WantNothing("") },
		"attachment": func(n *nodetest.Node) {
			_, _ = n.Exec.ExecPlugin(context.Background(), "/bridge", nil, []string{"CNI_COMMAND=ADD"})
			n.WantNothing("")
		},
		"no such call": func(n *nodetest.Node) { n.Last("DEL") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &failing{TB: t}
			func() {
				defer func() {
					if r := recover(); r != nil && r != errStop {
						panic(r)
					}
				}()
				check(nodetest.New(f, "bridge"))
			}()
			if !f.failed {
				t.Error("the check did not fail")
			}
		})
	}
}

// errStop is what a failing test panics with instead of ending its goroutine.
var errStop = errors.New("the test ends")

// failing is a test that should fail.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Errorf(string, ...any) { f.failed = true }
func (f *failing) Fatal(...any)          { f.failed = true; panic(errStop) }
func (f *failing) Fatalf(format string, _ ...any) {
	f.failed = true
	if strings.Contains(format, "begins") {
		panic(errStop)
	}
	f.TB.Fatalf("not expected: %s", format)
}

// Each place has its variants, and the rest of the document stays unchanged.
func TestJSONVariants(t *testing.T) {
	t.Parallel()
	all := nodetest.JSONVariants(t, `{"a":[1],"b":"x"}`)
	for _, want := range []string{`null`, `{"a":null,"b":"x"}`, `{"a":[null],"b":"x"}`, `{"a":[true],"b":"x"}`, `{"a":[1],"b":{}}`, `{"a":[1]}`, `{"b":"x"}`} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is not among them", want)
		}
	}
	if slices.Contains(all, `{"a":[1],"b":"x"}`) || len(all) != 4*12+2 {
		t.Errorf("%d variants: %q", len(all), all)
	}
}
