package runtimes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/metacni/metacni/internal/e2e/kube/program"
)

// nodes counts the nodes, so that no two share a directory or an address.
var nodes atomic.Int32

// A node is a machine with containerd, which has everything it keeps below one directory.
type node struct {
	t      *testing.T
	number int
	dir    string

	containerd *program.Process
	conn       *grpc.ClientConn
	cri.RuntimeServiceClient

	daemon *program.Process // multinetd
	nri    *program.Process

	pods atomic.Int32
	mu   sync.Mutex
	ids  []string // of all sandboxes that there have been
}

// newNode makes a node, without starting containerd.
func newNode(t *testing.T) *node {
	t.Helper()
	if missing != "" {
		if os.Getenv(requireEnv) == "require" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	n := &node{t: t, number: int(nodes.Add(1))}
	n.dir = fmt.Sprintf("/run/node%d", n.number) // short, for sockets
	t.Cleanup(n.end)
	n.mkdir("net.d")
	n.mkdir("leases")
	n.mkdir("run")
	n.mountRun()
	n.write("containerd.toml", strings.NewReplacer("DIR", n.dir, "BIN", os.Getenv(binEnv)).Replace(`version = 3
root = "DIR/containerd"
state = "DIR/run"
[grpc]
  address = "DIR/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "`+pauseImage+`"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["BIN"]
  conf_dir = "DIR/net.d"
[plugins.'io.containerd.internal.v1.opt']
  path = "DIR/opt"
[plugins.'io.containerd.nri.v1.nri']
  socket_path = "DIR/nri.sock"
  plugin_path = "DIR/nri/plugins"
  plugin_config_path = "DIR/nri/conf.d"
  plugin_request_timeout = "10s"
`))
	return n
}

// mountRun mounts the directory of what does not outlive a reboot.
func (n *node) mountRun() {
	n.t.Helper()
	if err := unix.Mount("tmpfs", n.file("run"), "tmpfs", 0, ""); err != nil {
		n.t.Fatal(err)
	}
}

// end kills everything on the node, and fails the test if one of our programs has panicked.
func (n *node) end() {
	n.killContainerd()
	n.killDaemon()
	n.nri.Kill()
	for _, name := range []string{"containerd.log", "multinetd.log", "nri.log"} {
		log, _ := os.ReadFile(n.file(name))
		for _, word := range []string{"panic: ", `"msg":"panic"`, "fatal error: "} {
			if strings.Contains(string(log), word) {
				n.t.Errorf("%s contains %q", name, word)
			}
		}
		if n.t.Failed() && len(log) > 0 {
			n.t.Logf("%s ends with:\n%s", name, log[max(0, len(log)-8<<10):])
		}
	}
}

// boot starts containerd and gives it the image of the pods.
func (n *node) boot() {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+n.file("containerd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.conn, n.RuntimeServiceClient = conn, cri.NewRuntimeServiceClient(conn)
	n.t.Cleanup(func() { _ = conn.Close() })
	n.startContainerd()
	ctr := exec.CommandContext(n.t.Context(), filepath.Join(os.Getenv(runtimeEnv), "ctr"), "--address", n.file("containerd.sock"),
		"--namespace", "k8s.io", "images", "import", "--no-unpack", filepath.Join(os.Getenv(binEnv), "pause.tar"))
	if out, err := ctr.CombinedOutput(); err != nil {
		n.t.Fatalf("import the image: %v\n%s", err, out)
	}
	images := cri.NewImageServiceClient(conn)
	eventually(n.t, func() bool {
		got, err := images.ImageStatus(n.t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: pauseImage}})
		return err == nil && got.GetImage() != nil
	})
}

// startContainerd starts containerd and waits until it answers.
func (n *node) startContainerd() {
	n.t.Helper()
	programs := os.Getenv(runtimeEnv)
	cmd := exec.Command(programs+"/containerd", "--config", n.file("containerd.toml"))
	cmd.Env = []string{"PATH=" + programs + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	var err error
	if n.containerd, err = program.Start(n.file("containerd.log"), cmd); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, func() bool {
		select {
		case <-n.containerd.Done:
			n.t.Fatalf("containerd has ended\n%s", n.containerd.LastLines())
		default:
		}
		n.conn.ResetConnectBackoff()
		_, err := n.Version(n.t.Context(), &cri.VersionRequest{})
		return err == nil
	})
}

// killContainerd kills containerd. Pods go on.
func (n *node) killContainerd() { n.containerd.Kill() }

// networkReady returns the condition of the network, with its message, as the kubelet asks
// for it.
func (n *node) networkReady() (ready bool, message string) {
	n.t.Helper()
	got, err := n.Status(n.t.Context(), &cri.StatusRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range got.GetStatus().GetConditions() {
		if c.GetType() == cri.NetworkReady {
			return c.GetStatus(), c.GetMessage()
		}
	}
	n.t.Fatalf("no condition of the network in %v", got)
	return false, ""
}

func (n *node) file(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

func (n *node) mkdir(name string) {
	n.t.Helper()
	if err := os.MkdirAll(n.file(name), 0o700); err != nil {
		n.t.Fatal(err)
	}
}

// write writes a file of the node by renaming.
func (n *node) write(name, text string) {
	n.t.Helper()
	temp := n.file(".next")
	err := os.WriteFile(temp, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(temp, n.file(name))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// eventually asks until the answer is yes. It fails the test after three minutes, and shows
// why.
func eventually(t testing.TB, ask func() bool, why ...*error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for !ask() {
		select {
		case <-pause.C:
		case <-ctx.Done():
			for _, err := range why {
				t.Log(*err)
			}
			t.Fatal("not after three minutes")
		}
	}
}
