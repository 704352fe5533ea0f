package program

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// Main is tested in the example plugins, as processes.

func TestCommands(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var did []string
	prepare := func(a *skel.CmdArgs) (string, error) {
		if a.ContainerID == "" {
			return "", broken
		}
		return a.ContainerID, nil
	}
	note := func(what string) func(string, context.Context) error {
		return func(c string, ctx context.Context) error {
			did = append(did, what+" "+c)
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	do := Commands(ctx, prepare, note("add"), note("check"), note("del"), note("gc"), note("status"))
	all := []func(*skel.CmdArgs) error{do.Add, do.Check, do.Del, do.GC, do.Status}
	for _, f := range all {
		if err := f(&skel.CmdArgs{}); !errors.Is(err, broken) {
			t.Errorf("without preparation: %v", err)
		}
		if err := f(&skel.CmdArgs{ContainerID: "c"}); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := do.Add(&skel.CmdArgs{ContainerID: "d"}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	if diff := cmp.Diff([]string{"add c", "check c", "del c", "gc c", "status c", "add d"}, did); diff != "" {
		t.Errorf("did (-want +got):\n%s", diff)
	}
}

// Plugins refuse arguments that they do not know unless they are told to ignore
// them, and none knows those of Kubernetes.
func TestArgumentsOfKubernetesAreToBeIgnored(t *testing.T) {
	t.Parallel()
	const pod = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=4f8c"
	for _, tt := range []struct{ name, args, want string }{
		{"none", "", ""},
		{"a pod", pod, "IgnoreUnknown=1;" + pod},
		{"beside others", "IP=10.0.0.5;K8S_POD_NAME=p", "IgnoreUnknown=1;IP=10.0.0.5;K8S_POD_NAME=p"},
		{"as runtimes have it", "IgnoreUnknown=1;" + pod, "IgnoreUnknown=1;" + pod},
		{"at the end", pod + ";IgnoreUnknown=true", pod + ";IgnoreUnknown=true"},
		{"not wanted", "IgnoreUnknown=0;" + pod, "IgnoreUnknown=0;" + pod},
		{"a key that plugins do not take for it", "ignoreunknown=1;K8S_POD_NAME=p", "IgnoreUnknown=1;ignoreunknown=1;K8S_POD_NAME=p"},
		{"a value that looks like it", "K8S_POD_NAME=IgnoreUnknown", "IgnoreUnknown=1;K8S_POD_NAME=IgnoreUnknown"},
		{"others alone", "IP=10.0.0.5;X=K8S_POD_NAME", "IP=10.0.0.5;X=K8S_POD_NAME"},
		{"no pairs", "K8S_;notapair", "K8S_;notapair"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			given := &skel.CmdArgs{Args: tt.args}
			var got string
			note := func(args string, _ context.Context) error { got = args; return nil }
			do := Commands(t.Context(), func(a *skel.CmdArgs) (string, error) { return a.Args, nil }, note, note, note, note, note)
			for _, command := range []func(*skel.CmdArgs) error{do.Add, do.Check, do.Del, do.GC, do.Status} {
				if err := command(given); err != nil || got != tt.want {
					t.Errorf("%q, %v; want %q", got, err, tt.want)
				}
			}
			if given.Args != tt.args {
				t.Errorf("the caller's are %q now", given.Args)
			}
		})
	}
}

// A list of valid attachments is there, or not, or not to be trusted (G10).
func TestG10Valid(t *testing.T) {
	t.Parallel()
	c1 := types.GCAttachment{ContainerID: "c1", IfName: "eth0"}
	for _, tt := range []struct {
		conf string
		want []types.GCAttachment
		code uint
	}{
		{`{}`, nil, 0},
		{`{"cni.dev/valid-attachments":null}`, nil, 0},
		{`{"cni.dev/valid-attachments":[]}`, []types.GCAttachment{}, 0},
		{`{"cni.dev/attachments":[]}`, []types.GCAttachment{}, 0},
		{`{"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],"cni.dev/attachments":[]}`, []types.GCAttachment{c1}, 0},
		{`{"cni.dev/valid-attachments":null,"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}]}`, []types.GCAttachment{c1}, 0},
		{`{"cni.dev/valid-attachments":[{"containerID":"c1"}]}`, nil, 7},
		{`{"cni.dev/attachments":[null]}`, nil, 7},
		{`{"cni.dev/valid-attachments":{}}`, nil, 6},
		{`{"cni.dev/valid-attachments":[5]}`, nil, 6},
		{`{`, nil, 6},
	} {
		got, err := Valid([]byte(tt.conf))
		if status.Code(err) != tt.code {
			t.Errorf("%s: code %d, want %d: %v", tt.conf, status.Code(err), tt.code, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.conf, diff)
		}
	}
}

// Decode looks past what it does not read.
func TestDecode(t *testing.T) {
	t.Parallel()
	type conf struct {
		Name string `json:"name"`
	}
	for _, tt := range []struct {
		text, want string
		code       uint
	}{
		{`{"name":"a"}`, "a", 0},
		{`{"name":"a","x":{"y":1,"y":2}}`, "a", 0},
		{"{\"name\":\"a\",\"x\":\"\xff\"}", "a", 0},
		{`{}`, "", 0},
		{`{"name":5}`, "", 6},
		{`null`, "", 6},
		{`[]`, "", 6},
		{`"x"`, "", 6},
		{``, "", 6},
		{`{"name":"a"}}`, "", 6},
	} {
		got, err := Decode[conf]([]byte(tt.text))
		if status.Code(err) != tt.code || err == nil && got.Name != tt.want {
			t.Errorf("%s: %+v, code %d: %v", tt.text, got, status.Code(err), err)
		}
		if err != nil && !errors.Is(err, netconf.ErrDecode) {
			t.Errorf("%s: %v", tt.text, err)
		}
	}
}

func TestD14StateDir(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dir, want string }{
		{"", "/fallback"},
		{"/x/../y/", "/y"},
		{"/var/lib/cni/mine", "/var/lib/cni/mine"},
		{"x", ""},
		{"/var/lib/cni/", ""},
		{"/var/lib//cni/results", ""},
	} {
		got, err := StateDir("n", "k", tt.dir, "/fallback")
		if got != tt.want || (tt.want == "") != errors.Is(err, netconf.ErrInvalid) {
			t.Errorf("%q: %q, %v", tt.dir, got, err)
		}
	}
}

func TestRefuseHostNetwork(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		netns, override string
		refused         bool
	}{
		{"/proc/self/ns/net", "", true},
		{"/proc/self/ns/../ns/net", "0", true},
		{"/proc/self/ns/net", "1", false},
		{"/proc/self/ns/net", "True", false},
		{file, "", false},
		{"/absent", "", false},
		{"", "", false},
	} {
		err := RefuseHostNetwork("", &skel.CmdArgs{Netns: tt.netns, NetnsOverride: tt.override})
		if (status.Code(err) == types.ErrInvalidNetNS) != tt.refused || (err == nil) == tt.refused {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
