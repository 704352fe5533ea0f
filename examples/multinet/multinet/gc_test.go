package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

func gcFor(attachments ...string) string {
	var all []string
	for _, a := range attachments {
		container, ifname, _ := strings.Cut(a, " ")
		all = append(all, `{"containerID":"`+container+`","ifname":"`+ifname+`"}`)
	}
	return `"cni.dev/valid-attachments":[` + strings.Join(all, ",") + `]`
}

// GC deletes attachments that the runtime does not list, and tells each delegate which
// of its own are valid.
func TestGC(t *testing.T) {
	t.Parallel()
	in := func(id string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.ContainerID = id } }
	start := func(t *testing.T) *host {
		t.Helper()
		h := newHost(t, "1.1.0")
		h.mustRun(t, "ADD", keys(bridge, annotated("storage")))
		h.mustRun(t, "ADD", bridge, in("c2"))
		h.trace()
		return h
	}
	t.Run("stale", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		h.mustRun(t, "GC", keys(`"delegates":[{"type":"bridge"},{"type":"tuning","name":"new"}]`, gcFor("c2 eth0")))
		got := h.trace()
		want := []string{"DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0", "GC bridge", "GC tuning"}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("calls %q, want %q", got, want)
		}
		for _, c := range h.Exec.Calls() {
			if c.String() == "GC bridge" && !strings.Contains(string(c.Stdin), `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`) {
				t.Errorf("GC of bridge with %s", c.Stdin)
			}
			if c.String() == "GC tuning" && !strings.Contains(string(c.Stdin), `"cni.dev/valid-attachments":[]`) {
				t.Errorf("GC of a network that has no attachments with %s", c.Stdin)
			}
		}
		h.mustRun(t, "DEL", bridge, in("c2"))
		h.clean(t)
	})
	t.Run("old key", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		h.mustRun(t, "GC", keys(bridge, strings.Replace(gcFor(), "valid-attachments", "attachments", 1)))
		h.clean(t)
	})
	t.Run("current configuration broken", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		wantError(t, h.run(t, "GC", keys(`"clusterNetwork":"absent"`, gcFor())), 7, `"absent"`)
		h.clean(t)
	})
	t.Run("null", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		wantError(t, h.run(t, "GC", keys(bridge, `"cni.dev/valid-attachments":null`)), 7, "multi")
		wantTrace(t, h)
	})
}

// A mistake in a definition can make both ADD and DEL fail. A sweep removes what is
// recorded of such an ADD once the definition is mended: that of the pod's namespace, and
// with what the pod has asked for.
func TestSweepUsesTheDefinitionAsItIsNow(t *testing.T) {
	t.Parallel()
	config := func(ipam string) string { return `{"name":"net","type":"strict","ipam":{"type":"` + ipam + `"}}` }
	asPod := annotatedWith(nad.NetworksAnnotation, `"[{\"name\":\"blue\",\"cni-args\":{\"k\":1}}]"`)
	for _, tt := range []struct {
		name  string
		keys  string
		file  string                                                          // the definition is mended in it
		find  func(context.Context, nad.Ref, nad.Use) (nad.Definition, error) // of a cluster
		want  string                                                          // IPAM of the DELs
		swept lifecycle.Sweep
	}{
		{
			name: "not mended",
			want: "typo", swept: lifecycle.Sweep{Failed: 1},
		},
		{
			name: "in a file",
			file: "net.d/a/blue.conf",
			want: "typo right", swept: lifecycle.Sweep{Removed: 1},
		},
		{
			name: "in the file of another namespace",
			file: "net.d/b/blue.conf",
			want: "typo", swept: lifecycle.Sweep{Failed: 1},
		},
		{
			name: "in a cluster",
			find: func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
				return nad.Definition{Ref: r, Config: config("of-" + r.Namespace)}, nil
			},
			want: "typo of-a", swept: lifecycle.Sweep{Removed: 1},
		},
		{
			name: "in a cluster that does not answer",
			find: func(ctx context.Context, _ nad.Ref, _ nad.Use) (nad.Definition, error) {
				<-ctx.Done()
				return nad.Definition{}, ctx.Err()
			},
			want: "typo", swept: lifecycle.Sweep{Failed: 1},
		},
		{
			name: "with plugins that it may not have",
			keys: `"allowedTypes":{"nad":["other"]},`,
			file: "net.d/a/blue.conf",
			want: "typo", swept: lifecycle.Sweep{Failed: 1},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			var tried []string
			h.Exec.Plugins["strict"] = func(_ context.Context, c delegatetest.Call) ([]byte, error) {
				var conf struct {
					IPAM struct{ Type string }
					Args struct{ CNI map[string]int }
				}
				if err := json.Unmarshal(c.Stdin, &conf); err != nil {
					return nil, err
				}
				if c.Command == "DEL" {
					tried = append(tried, conf.IPAM.Type)
				}
				if conf.IPAM.Type == "typo" || conf.Args.CNI["k"] != 1 {
					return nil, errors.New("no such IPAM")
				}
				return nil, nil
			}
			h.Write("net.d/a/blue.conf", config("typo"))
			if err := h.run(t, "ADD", keys(bridge, asPod), podOf("a")); err == nil {
				t.Fatal("success")
			}
			if tt.file != "" {
				h.Write(tt.file, config("right"))
			}
			h.cluster = Cluster{Definition: tt.find}
			tried = nil
			s := &lifecycle.Sweeper{}
			nodetest.OK(t, PrepareSweep(t.Context(), s, h.process(), h.cluster, []byte(h.conf(tt.keys+bridge)), ""))
			swept, err := s.Sweep(t.Context())
			if err != nil || swept != tt.swept {
				t.Errorf("%+v, %v, want %+v", swept, err, tt.swept)
			}
			if got := strings.Join(tried, " "); got != tt.want {
				t.Errorf("DELs with %q, want %q", got, tt.want)
			}
		})
	}
}

// A network that needs a device is removed with the device that the record has.
func TestSweepOfAMendedDefinitionHasItsDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	asked, mode := 0, "typo"
	h.cluster = withDevices(&asked, "0000:00:01.0")
	h.cluster.Definition = func(_ context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
		if use != nad.Selected {
			return nad.Definition{}, &netconf.Error{Kind: netconf.ErrNotFound}
		}
		return nad.Definition{Ref: r, Resource: vf, Config: `{"type":"strict","mode":"` + mode + `"}`}, nil
	}
	var removed []string
	h.Exec.Plugins["strict"] = func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		var conf struct{ Mode, DeviceID string }
		if err := json.Unmarshal(c.Stdin, &conf); err != nil || conf.Mode == "typo" {
			return nil, errors.New("no such mode")
		}
		removed = append(removed, c.Command+" "+conf.DeviceID)
		return nil, nil
	}
	if err := h.run(t, "ADD", keys(bridge, annotated("vf")), podOf("a")); err == nil {
		t.Fatal("success")
	}
	mode = "right"
	s := &lifecycle.Sweeper{}
	nodetest.OK(t, PrepareSweep(t.Context(), s, h.process(), h.cluster, []byte(h.conf(bridge)), ""))
	if swept, err := s.Sweep(t.Context()); err != nil || swept.Removed != 1 {
		t.Errorf("%+v, %v", swept, err)
	}
	if d := cmp.Diff([]string{"DEL 0000:00:01.0"}, removed); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	h.clean(t)
}
