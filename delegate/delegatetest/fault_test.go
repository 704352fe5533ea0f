package delegatetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A Script kills the third call of the run, whichever plugin it is for.
func ExampleExec_script() {
	ok := delegatetest.Result(nil)
	exec := &delegatetest.Exec{
		Plugins: map[string]delegatetest.Plugin{"bridge": ok, "sriov": ok},
		Script: func(n int, _ delegatetest.Call, p delegatetest.Plugin) delegatetest.Plugin {
			if n == 3 {
				return delegatetest.KillOn("", p)
			}
			return p
		},
	}
	for _, command := range []string{"ADD", "DEL"} {
		for _, plugin := range []string{"bridge", "sriov"} {
			_, err := exec.ExecPlugin(context.Background(), plugin, []byte(`{}`), []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1"})
			fmt.Println(command, plugin, err)
		}
	}
	fmt.Println(exec.Live())
	// Output:
	// ADD bridge <nil>
	// ADD sriov <nil>
	// DEL bridge signal: killed
	// DEL sriov <nil>
	// [bridge c1 ]
}

func TestEachFaultDoesWhatItsNameSays(t *testing.T) {
	t.Parallel()
	const conf = `{"cniVersion":"1.0.0"}`
	for _, tt := range []struct {
		name  string
		fault func(command string, p delegatetest.Plugin) delegatetest.Plugin
		did   bool // its work
		out   string
		code  uint // 0: none
		fails bool
	}{
		{"fail", func(c string, p delegatetest.Plugin) delegatetest.Plugin {
			return delegatetest.FailOn(c, 107, "no", p)
		}, false, "", 107, true},
		{"partial", func(c string, p delegatetest.Plugin) delegatetest.Plugin {
			return delegatetest.PartialOn(c, 107, "no", p)
		}, true, "", 107, true},
		{"kill", delegatetest.KillOn, true, "", 0, true},
		{"noise", func(c string, p delegatetest.Plugin) delegatetest.Plugin {
			return delegatetest.NoiseOn(c, "hello ", p)
		}, true, "hello " + conf, 0, false},
		{"twice", delegatetest.TwiceOn, true, conf + "\n" + conf + "\n", 0, false},
		{"silent", delegatetest.SilentOn, true, "", 0, false},
		{"garbage", delegatetest.GarbageOn, true, `{"cniVersion":`, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			did := 0
			base := func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
				did++
				return delegatetest.Result(nil)(ctx, c)
			}
			x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"one": tt.fault("ADD", base), "all": tt.fault("", base)}}
			for _, typ := range []string{"one", "all"} {
				did = 0
				out, err := call(x, "ADD", typ, "c", "e", conf)
				var said *types.Error
				if string(out) != tt.out || (err != nil) != tt.fails || errors.As(err, &said) != (tt.code != 0) || said != nil && said.Code != tt.code {
					t.Errorf("%s printed %q: %v", typ, out, err)
				}
				if (did == 1) != tt.did {
					t.Errorf("%s worked %d times", typ, did)
				}
			}
			if out, err := call(x, "VERSION", "one", "", "", ""); err != nil || !strings.Contains(string(out), "supportedVersions") {
				t.Errorf("another command printed %q: %v", out, err)
			}
		})
	}
	// What fails by itself, fails as it did.
	failing := delegatetest.FailOn("ADD", 11, "no", delegatetest.Result(nil))
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"p": delegatetest.TwiceOn("ADD", failing)}}
	if _, err := call(x, "ADD", "p", "c", "e", conf); err == nil || err.Error() != "no" {
		t.Errorf("err = %v", err)
	}
}

func TestSlowOnAndGateOnWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
			"slow": delegatetest.SlowOn("ADD", time.Hour, delegatetest.Result(nil)),
			"gate": delegatetest.GateOn("ADD", gate, delegatetest.Result(nil)),
		}}
		run := func(ctx context.Context, typ string) (string, error) {
			out, err := x.ExecPlugin(ctx, typ, []byte(`{}`), []string{"CNI_COMMAND=ADD"})
			return string(out), err
		}
		start := time.Now()
		if out, err := run(t.Context(), "slow"); err != nil || out == "" || time.Since(start) != time.Hour {
			t.Errorf("after %v: %q, %v", time.Since(start), out, err)
		}
		time.AfterFunc(time.Minute, func() { close(gate) })
		start = time.Now()
		if out, err := run(t.Context(), "gate"); err != nil || out == "" || time.Since(start) != time.Minute {
			t.Errorf("after %v: %q, %v", time.Since(start), out, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x.Plugins["gate"] = delegatetest.GateOn("ADD", nil, delegatetest.Result(nil))
		for _, typ := range []string{"slow", "gate"} {
			if out, err := run(ctx, typ); err == nil || err.Error() != "signal: killed" || out != "" {
				t.Errorf("%s: %q, %v", typ, out, err)
			}
		}
	})
}

func TestScriptSeesEveryCall(t *testing.T) {
	t.Parallel()
	var seen []string
	x := &delegatetest.Exec{
		Plugins: map[string]delegatetest.Plugin{"a": delegatetest.Result(nil), "b": delegatetest.Result(nil)},
		Script: func(n int, c delegatetest.Call, p delegatetest.Plugin) delegatetest.Plugin {
			seen = append(seen, fmt.Sprint(n, " ", c))
			if n == 2 {
				return delegatetest.FailOn("ADD", 107, "second", p)
			}
			return p
		},
	}
	for i, typ := range []string{"a", "b", "a"} {
		if _, err := call(x, "ADD", typ, "c", "e", `{}`); (err != nil) != (i == 1) {
			t.Errorf("call %d: %v", i+1, err)
		}
	}
	if diff := cmp.Diff([]string{"1 ADD a e", "2 ADD b e", "3 ADD a e"}, seen); diff != "" {
		t.Errorf("seen (-want +got):\n%s", diff)
	}
}
