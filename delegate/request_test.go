package delegate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// Unknown keys, numbers and nesting reach every plugin as they were written,
// and DEL replays what ADD used.
func TestConfigurationReachesPluginsAsItWasWritten(t *testing.T) {
	t.Parallel()
	n := parse(t, `{"cniVersion":"1.1.0","name":"blue","plugins":[
		{"type":"first","capabilities":{"mac":true},"vendor":{"id":9007199254740993,"ratio":1.50e+2,"deep":[{"a":[1,[2]]}]},"html":"<&>","null":null},
		{"type":"second"}]}`)
	a := attach(n)
	a.Args = "IgnoreUnknown=1;K8S_POD_NAME=p;X=a=b"
	a.CapabilityArgs = map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`), "bandwidth": json.RawMessage(`{"ingressRate":12345678901234567890}`)}
	x := fakes("second")
	x.Plugins["first"] = printing(`{"cniVersion":"1.1.0","x-vendor":{"id":9007199254740993,"z":1.0}}`)
	iv := invoker(x)
	done, err := iv.Add(t.Context(), a)
	nodetest.OK(t, err)
	nodetest.OK(t, iv.Check(t.Context(), done))
	nodetest.OK(t, iv.Del(t.Context(), done))
	var kept []string
	for _, c := range x.Calls() {
		if c.Args != a.Args {
			t.Errorf("%s: CNI_ARGS %q", c, c.Args)
		}
		keys := stdin(t, c)
		if c.String() != "ADD first eth0" && string(keys["prevResult"]) != `{"cniVersion":"1.1.0","x-vendor":{"id":9007199254740993,"z":1.0}}` {
			t.Errorf("%s: prevResult %s", c, keys["prevResult"])
		}
		if c.Plugin != "first" {
			continue
		}
		delete(keys, "prevResult")
		text, err := json.Marshal(keys)
		nodetest.OK(t, err)
		kept = append(kept, string(text))
		for key, want := range map[string]string{
			"vendor":        `{"id":9007199254740993,"ratio":1.50e+2,"deep":[{"a":[1,[2]]}]}`,
			"html":          `"<&>"`,
			"null":          `null`,
			"capabilities":  `{"mac":true}`,
			"runtimeConfig": `{"mac":"02:00:00:00:00:01"}`,
		} {
			if string(keys[key]) != want {
				t.Errorf("%s: %s is %s, want %s", c, key, keys[key], want)
			}
		}
	}
	if len(kept) != 3 || kept[0] != kept[1] || kept[1] != kept[2] {
		t.Errorf("ADD, CHECK and DEL were given\n%s", strings.Join(kept, "\n"))
	}
}

// The environment is sorted, the same for the same input, and has none of the
// caller's CNI_ variables.
func TestEnvironmentIsSortedAndTheCallersOwn(t *testing.T) {
	t.Parallel()
	env := []string{
		"PATH=/bin", "CNI_COMMAND=STATUS", "CNI_IFNAME=other", "CNI_NETNS=/other", "CNI_ARGS=X=1", "CNI_CONTAINERID=other", "CNI_PATH=/other",
		"HOME=/first", "garbage", "HOME=/root", "CNI_NETNS_OVERRIDE=1", "EMPTY=", "LIST=a=b",
	}
	run := func(change func(*delegate.Invoker)) []delegatetest.Call {
		x := fakes("p")
		iv := invoker(x)
		iv.Env = env
		if change != nil {
			change(iv)
		}
		a := attach(network(t, "1.1.0", "blue", "p"))
		a.Args = "A=1;B=2"
		done, err := iv.Add(t.Context(), a)
		nodetest.OK(t, err)
		done.NetNS = ""
		nodetest.OK(t, errors.Join(iv.Del(t.Context(), done), iv.Status(t.Context(), a.Network), iv.GC(t.Context(), a.Network, nil)))
		return x.Calls()
	}
	calls := run(nil)
	same := []string{"CNI_NETNS_OVERRIDE=1", "CNI_PATH=/opt/cni/bin:/usr/lib/cni", "EMPTY=", "HOME=/root", "LIST=a=b", "PATH=/bin"}
	for i, want := range [][]string{
		{"CNI_ARGS=A=1;B=2", "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/no-such-directory/c1"},
		{"CNI_ARGS=A=1;B=2", "CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS="},
		{"CNI_COMMAND=STATUS"},
		{"CNI_COMMAND=GC"},
	} {
		if diff := cmp.Diff(slices.Concat(want, same), calls[i].Env); diff != "" {
			t.Errorf("%s (-want +got):\n%s", calls[i], diff)
		}
	}
	for range 20 {
		if diff := cmp.Diff(calls, run(nil)); diff != "" {
			t.Fatalf("same input, other output:\n%s", diff)
		}
	}
	none := run(func(iv *delegate.Invoker) { iv.Env = nil })
	nodetest.Equal(t, "an Invoker without Env passes something on", none[2].Env, []string{"CNI_COMMAND=STATUS", "CNI_PATH=/opt/cni/bin:/usr/lib/cni"})
}

// Any number of invokers work side by side.
func TestInvokersShareNothing(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			x := fakes("p", "q")
			iv := &delegate.Invoker{Exec: x, Path: []string{fmt.Sprint("/bin", i)}, Env: []string{fmt.Sprint("WHO=", i)}}
			a := attach(network(t, "1.1.0", fmt.Sprint("n", i), "p", "q"))
			for range 20 {
				done, err := iv.Add(t.Context(), a)
				if err == nil {
					err = iv.Del(t.Context(), done)
				}
				if err != nil {
					t.Error(err)
				}
			}
			for _, c := range x.Calls() {
				if env := environ(c); env["WHO"] != fmt.Sprint(i) || env["CNI_PATH"] != fmt.Sprint("/bin", i) {
					t.Errorf("invoker %d ran %s with %q", i, c, c.Env)
				}
			}
		})
	}
	wg.Wait()
}
