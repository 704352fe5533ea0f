package resident_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// Registered types go to their resident, all others to the Exec below. The path
// of a registered type is not a file name.
func TestExecCallsResidentsForTheirTypesOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	far, near := fakes("far"), fakes("near")
	n.serve(newPlugin("10", "d", far, "far"))
	iv := n.invoker(near)
	done, err := iv.Add(t.Context(), attach("c1", "near", "far"))
	nodetest.OK(t, err)
	nodetest.OK(t, iv.Check(t.Context(), done))
	nodetest.OK(t, iv.Status(t.Context(), done.Network))
	nodetest.OK(t, iv.GC(t.Context(), done.Network, nil))
	nodetest.OK(t, iv.Del(t.Context(), done))
	for x, typ := range map[*delegatetest.Exec]string{far: "far", near: "near"} {
		want := []string{"ADD " + typ + " eth0", "CHECK " + typ + " eth0", "STATUS " + typ, "GC " + typ, "DEL " + typ + " eth0"}
		nodetest.Equal(t, typ, x.Trace(), want)
	}
	x := n.Exec(near)
	path, err := x.FindInPath("far", nil)
	nodetest.OK(t, err)
	if _, err := os.Lstat(path); err == nil || !strings.ContainsRune(path, 0) {
		t.Errorf("%q may be a file's", path)
	}
	if _, err := x.FindInPath("nowhere", nil); err == nil {
		t.Error("the Exec below was not asked")
	}
}

// libcni can use the Exec, also for VERSION.
func TestExecWorksWithLibcni(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	far := fakes("first", "second")
	n.serve(newPlugin("10", "d", far, "first", "second"))
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"first"},{"type":"second"}]}`))
	nodetest.OK(t, err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, t.TempDir(), n.Exec(&delegatetest.Exec{}))
	rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: [][2]string{{"CNI_NETNS_OVERRIDE", "1"}}}
	versions, err := cni.ValidateNetworkList(t.Context(), list)
	nodetest.OK(t, err)
	nodetest.Equal(t, "capabilities", versions, nil)
	info, err := cni.GetVersionInfo(t.Context(), "first")
	nodetest.OK(t, err)
	if got := fmt.Sprint(info.SupportedVersions()); !strings.Contains(got, "1.1.0") {
		t.Errorf("versions %s", got)
	}
	_, err = cni.AddNetworkList(t.Context(), list, rt)
	nodetest.OK(t, err)
	nodetest.OK(t, cni.CheckNetworkList(t.Context(), list, rt))
	nodetest.OK(t, cni.GetStatusNetworkList(t.Context(), list))
	nodetest.OK(t, cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}))
	nodetest.OK(t, cni.DelNetworkList(t.Context(), list, rt))
	nodetest.Equal(t, "alive", far.Live(), nil)
	for _, c := range far.Calls() {
		if c.Command == "ADD" && c.Plugin == "second" && !strings.Contains(string(c.Stdin), "prevResult") {
			t.Errorf("no prevResult in %s", c.Stdin)
		}
	}
}

func TestExecReturnsStdoutByteForByte(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	const printed = " {\"cniVersion\" : \"1.1.0\", \"x\": 1e3, \"y\": \"<&>\\u00e9\xff\", \"dup\": 1, \"dup\": 2}\n\n"
	n.serve(with("10", "p", func(context.Context, delegatetest.Call) ([]byte, error) { return []byte(printed), nil }))
	out, err := n.exec(t.Context(), "p", "ADD", "c1")
	if err != nil || string(out) != printed {
		t.Errorf("%q, %v", out, err)
	}
}

// The error is that of the plugin, and contains nothing of its stdin.
func TestExecReturnsTheErrorOfThePlugin(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err, want error
	}{
		"with a code":    {types.NewError(107, "no device", "all 8 in use"), types.NewError(107, "no device", "all 8 in use")},
		"wrapped":        {fmt.Errorf("opening: %w", types.NewError(5, "stuck", "")), types.NewError(5, "opening: stuck", "")},
		"without a code": {errors.New("some words"), types.NewError(999, "some words", "")},
		"panic":          {nil, types.NewError(999, "the plugin panicked", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t).start()
			n.serve(with("10", "p", func(context.Context, delegatetest.Call) ([]byte, error) {
				if tt.err == nil {
					panic("secret")
				}
				return []byte("half a result"), tt.err
			}))
			_, err := n.exec(t.Context(), "p", "ADD", "c1")
			nodetest.Equal(t, "got", err, tt.want)
		})
	}
}

// Calls that package skel refuses in a process are refused in a resident.
func TestExecRefusesWhatSkelRefuses(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	x := fakes("p")
	n.serve(newPlugin("10", "p", x))
	for name, tt := range map[string]struct{ command, id, env string }{
		"unknown command": {"JUMP", "c1", ""},
		"no command":      {"", "c1", ""},
		"no container":    {"ADD", "", ""},
		"bad container":   {"ADD", "../c1", ""},
		"bad interface":   {"ADD", "c1", "CNI_IFNAME=a/b"},
		"no path":         {"ADD", "c1", "CNI_PATH="},
	} {
		_, err := n.exec(t.Context(), "p", tt.command, tt.id, tt.env)
		nodetest.Equal(t, fmt.Sprintf("%s: %v", name, err), status.Code(err), 4)
	}
	nodetest.Equal(t, "called", x.Trace(), nil)
	_, err := n.exec(t.Context(), "p", "ADD", "c1", "CNI_NETNS_OVERRIDE=", "CNI_NETNS=/proc/self/ns/net")
	nodetest.Code(t, err, types.ErrInvalidNetNS)
}

// When the context of a call ends, so does that of the handler. The call fails
// with code 11, and the connection stays.
func TestExecEndsTheHandlerWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	in, out := make(chan struct{}), make(chan error, 1)
	n.serve(with("10", "p", func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "hang" {
			close(in)
			<-ctx.Done()
			out <- ctx.Err()
			return nil, ctx.Err()
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-in
		cancel()
	}()
	_, err := n.exec(ctx, "p", "ADD", "hang")
	nodetest.Code(t, err, 11)
	if !errors.Is(err, context.Canceled) || errors.Is(err, delegate.ErrNotRun) {
		t.Errorf("err = %v", err)
	}
	nodetest.Is(t, nodetest.Come(t, out, "the end of the handler's context"), context.Canceled)
	if _, err := n.exec(t.Context(), "p", "ADD", "c2"); err != nil {
		t.Errorf("the next call: %v", err)
	}
	nodetest.Equal(t, "got", n.seen(), []string{"10-p ready"})
}

// The DEL after an ADD whose context has ended waits for the handler of the
// ADD. The DEL of another container does not.
func TestExecRunsDelAfterTheAddThatItUndoes(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	in, out := make(chan struct{}), make(chan struct{})
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"p": func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			close(in)
			<-out // even when its context ends
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}}}
	n.serve(newPlugin("10", "p", x))
	ctx, cancel := context.WithCancel(t.Context())
	added := make(chan error, 1)
	go func() {
		_, err := n.exec(ctx, "p", "ADD", "c1")
		added <- err
	}()
	nodetest.Come(t, in, "the ADD")
	cancel()
	nodetest.Code(t, nodetest.Come(t, added, "its end"), 11)
	deleted := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "p", "DEL", "c1")
		deleted <- err
	}()
	_, err := n.exec(t.Context(), "p", "DEL", "c2")
	nodetest.OK(t, err)
	nodetest.Equal(t, "beside the ADD", x.Trace(), []string{"ADD p eth0", "DEL p eth0"})
	close(out)
	nodetest.OK(t, nodetest.Come(t, deleted, "the DEL"))
	nodetest.Equal(t, "alive", x.Live(), nil)
}

func TestExecPassesOnlyVariablesOfCNIAndTraces(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	x := fakes("p")
	n.serve(newPlugin("10", "p", x))
	_, err := n.exec(t.Context(), "p", "ADD", "c1", "TRACEPARENT=00-1", "SECRET=hunter2", "PATH=/bin")
	nodetest.OK(t, err)
	want := []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/c1", "CNI_NETNS_OVERRIDE=1",
		"CNI_PATH=/opt/cni/bin", "TRACEPARENT=00-1",
	}
	nodetest.Equal(t, "got", x.Calls()[0].Env, want)
}

// hangs returns a plugin that hangs in the ADD of container "hang" until the
// test ends, even when its context ends.
func hangs(t *testing.T) delegatetest.Plugin {
	t.Helper()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "hang" && c.Command == "ADD" {
			<-over
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}
}

// Only the host's own timeouts count against a resident.
func TestDeadlineOfTheCallerDisconnectsNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(with("10", "p", hangs(t)))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := n.exec(ctx, "p", "ADD", "hang")
		cancel()
		nodetest.Code(t, err, 11)
		if strings.Contains(err.Error(), "no answer in time") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v", err)
		}
	}
	nodetest.Equal(t, "got", n.states(), []string{"10-p ready"})
}

// A result that is too long fails its call, and the connection stays.
func TestResultThatIsTooLongFailsItsCall(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(with("10", "p", func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "long" {
			return bytes.Repeat([]byte("x"), 4<<20+1), nil
		}
		return bytes.Repeat([]byte("x"), 4<<20), nil
	}))
	_, err := n.exec(t.Context(), "p", "ADD", "long")
	nodetest.Code(t, err, 999)
	nodetest.Says(t, err, "a result of 4194305 bytes is longer than 4194304")
	_, err = n.exec(t.Context(), "p", "ADD", "c1")
	nodetest.OK(t, err)
	nodetest.Equal(t, "seen", n.seen(), []string{"10-p ready"})
}

// The text of an error contains neither configuration nor environment.
func TestErrorsContainNoConfiguration(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.CallTimeout = time.Millisecond
	n.start()
	n.serve(with("10", "p", hangs(t)))
	x := n.Exec(&delegatetest.Exec{})
	path, err := x.FindInPath("p", nil)
	nodetest.OK(t, err)
	conf, err := json.Marshal(map[string]string{"cniVersion": "1.1.0", "name": "blue", "type": "p", "password": "hunter2!"})
	nodetest.OK(t, err)
	for range 4 {
		_, err = x.ExecPlugin(t.Context(), path, conf, []string{
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=hang", "CNI_NETNS=x", "CNI_IFNAME=eth0", "CNI_PATH=x", "TOKEN=hunter2!",
		})
		if err == nil || bytes.Contains([]byte(err.Error()), []byte("hunter2")) {
			t.Errorf("err = %v", err)
		}
	}
}
