package runtimes

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A node is a machine with containerd, which has everything it keeps below one directory.
type node struct {
	t    *testing.T
	host *process.Node

	containerd *process.Process
	conn       *grpc.ClientConn
	cri.RuntimeServiceClient

	daemon *process.Process // multinetd
	nri    *process.Process

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
	n := &node{t: t, host: process.NewNode(t, "/run")}
	n.host.Mkdir("leases", "run")
	n.mountRun()
	n.write("containerd.toml", strings.NewReplacer("DIR", n.host.Dir, "BIN", os.Getenv(binEnv)).Replace(`version = 3
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
	nodetest.OK(n.t, unix.Mount("tmpfs", n.file("run"), "tmpfs", 0, ""))
}

// boot starts containerd and gives it the image of the pods.
func (n *node) boot() {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+n.file("containerd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	nodetest.OK(n.t, err)
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
	n.containerd = n.host.Serve(n.file("containerd.log"), cmd)
	eventually(n.t, func() bool {
		if n.containerd.Over() {
			n.t.Fatalf("containerd has ended\n%s", n.containerd.LastLines())
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
	nodetest.OK(n.t, err)
	for _, c := range got.GetStatus().GetConditions() {
		if c.GetType() == cri.NetworkReady {
			return c.GetStatus(), c.GetMessage()
		}
	}
	n.t.Fatalf("no condition of the network in %v", got)
	return false, ""
}

func (n *node) file(elem ...string) string { return n.host.File(elem...) }

// write writes a file of the node by renaming.
func (n *node) write(name, text string) {
	n.t.Helper()
	temp := n.file(".next")
	err := os.WriteFile(temp, []byte(text), 0o600)
	nodetest.OK(n.t, err)
	nodetest.OK(n.t, os.Rename(temp, n.file(name)))
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

// cgroupPrefix begins the name of the parent of all pods' cgroups, before the ID of the
// process that runs the tests.
const cgroupPrefix = "metacni-runtimes-"

// cgroupRoot is where cgroups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// makeCgroups makes a cgroup with a name in all hierarchies, for cgroups of containers in it.
func makeCgroups(name string) error {
	for _, dir := range cgroups(name) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	control := cgroupRoot + "/cgroup.subtree_control" // version 2 only
	controllers, err := os.ReadFile(control)
	if errors.Is(err, fs.ErrNotExist) || strings.Contains(string(controllers), "memory") {
		return nil
	}
	if err == nil {
		err = os.WriteFile(control, []byte("+memory"), 0)
	}
	if err != nil {
		return fmt.Errorf("needs cgroups with controllers: %w", err)
	}
	return nil
}

// cgroups lists the directories of the cgroup with a name in all hierarchies, existing or
// not: one of version 2, or one for each controller of version 1.
func cgroups(name string) []string {
	if _, err := os.Stat(cgroupRoot + "/cgroup.controllers"); err == nil {
		return []string{filepath.Join(cgroupRoot, name)}
	}
	all, _ := filepath.Glob(cgroupRoot + "/*/cgroup.procs")
	for i, file := range all {
		all[i] = filepath.Join(filepath.Dir(file), name)
	}
	return all
}

// removeCgroups removes the cgroups with a name. Without a name it removes what tests have
// left that were killed.
func removeCgroups(name string) {
	pattern := name
	if name == "" {
		pattern = cgroupPrefix + "*"
	}
	for _, dir := range cgroups(pattern) {
		found, _ := filepath.Glob(dir)
		for _, dir := range found {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix))
			if name != "" || err == nil && unix.Kill(pid, 0) == unix.ESRCH {
				removeCgroup(dir)
			}
		}
	}
}

// removeCgroup removes a cgroup without processes and those below.
func removeCgroup(dir string) {
	var below []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			below = append(below, path)
		}
		return nil
	})
	slices.Reverse(below)
	for _, dir := range below {
		_ = os.Remove(dir) // rmdir refuses one that is in use
	}
}

// pauseImage is the name of the image of every pod.
const pauseImage = "localhost/pause:1"

type object = process.Object

// writeImage writes an OCI image of a static program to the file to.
func writeImage(program, to string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := archive(file{"pause", text, 0o755})
	if err != nil {
		return err
	}
	digest := func(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
	var files []file
	blob := func(kind string, data []byte) object {
		files = append(files, file{"blobs/sha256/" + digest(data)[len("sha256:"):], data, 0o644})
		return object{"mediaType": "application/vnd.oci.image." + kind, "digest": digest(data), "size": len(data)}
	}
	encode := func(v any) (data []byte) {
		if err == nil {
			data, err = json.Marshal(v)
		}
		return data
	}
	config := blob("config.v1+json", encode(object{
		"os": "linux", "architecture": runtime.GOARCH, "config": object{"Entrypoint": []string{"/pause"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	}))
	manifest := blob("manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []object{blob("layer.v1.tar", layer)},
	}))
	manifest["annotations"] = object{"io.containerd.image.name": pauseImage}
	files = append(files,
		file{"oci-layout", encode(object{"imageLayoutVersion": "1.0.0"}), 0o644},
		file{"index.json", encode(object{"schemaVersion": 2, "manifests": []object{manifest}}), 0o644})
	if err != nil {
		return err
	}
	image, err := archive(files...)
	if err != nil {
		return err
	}
	return os.WriteFile(to, image, 0o600)
}

// A file is a file in an archive.
type file struct {
	name string
	data []byte
	mode int64
}

func archive(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// sync makes one attempt to let the pod run in one sandbox, or in none. It removes the
// sandboxes of earlier attempts and those that do not run, as the kubelet does.
func (p *pod) sync(wanted bool) error {
	ctx := context.WithoutCancel(p.n.t.Context())
	got, err := p.n.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{podLabel: p.name()}},
	})
	if err != nil {
		return err
	}
	p.id = ""
	for _, s := range got.GetItems() {
		if wanted && p.id == "" && s.GetState() == cri.PodSandboxState_SANDBOX_READY {
			p.id = s.GetId()
			continue
		}
		if _, err := p.n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return err
		}
		if _, err := p.n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return err
		}
	}
	if !wanted || p.id != "" {
		return nil
	}
	p.config.Metadata.Attempt++
	return p.try()
}

// settle repeats sync until it succeeds.
func (p *pod) settle(wanted bool) {
	p.n.t.Helper()
	var last error
	eventually(p.n.t, func() bool {
		last = p.sync(wanted)
		return last == nil
	}, &last)
	if wanted {
		p.look()
	}
}

// daemonKeys are the keys of multinetd's file: it publishes its network to containerd.
func (n *node) daemonKeys(more object) object {
	keys := object{
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"), "binDir": os.Getenv(binEnv),
		"confDir": n.file("networks"), "nadDir": n.file("nads"), "logFormat": "json", "sweepInterval": "200ms",
		"multusConfigFile": "auto", "cniConfigDir": n.file("net.d"),
	}
	maps.Copy(keys, more)
	return keys
}

// startDaemon starts multinetd and waits until it is ready.
func (n *node) startDaemon(keys object) {
	n.t.Helper()
	n.writeJSON("daemon.json", keys)
	cmd := exec.Command(bin("multinetd"), "--config", n.file("daemon.json"))
	cmd.Env = []string{"PATH=" + process.Path}
	n.daemon = n.host.Serve(n.file("multinetd.log"), cmd)
	n.host.Await(n.daemon, n.file("d", "multus.sock"), "/readyz")
}

// killDaemon kills multinetd, if it runs.
func (n *node) killDaemon() { n.daemon.Kill() }

// tool runs one of multinet's operator commands, which must exit with a status. It returns
// what the command prints.
func (n *node) tool(status int, args ...string) string {
	n.t.Helper()
	a := n.host.Exec(bin("multinet"), map[string]string{"PATH": process.Path}, nil, args...).Wait()
	if a.Code != status {
		n.t.Fatalf("multinet %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), a.Code, status, a.Stdout, a.Stderr)
	}
	return string(a.Stdout) + a.Stderr
}

// records lists container and interface of each record of the operator's list.
func (n *node) records() (all []string) {
	n.t.Helper()
	var records []struct{ Container, Interface, State string }
	nodetest.OK(n.t, json.Unmarshal([]byte(n.tool(0, "list", "-o", "json", "--dir", n.file("state"))), &records))
	for _, r := range records {
		all = append(all, r.Container+" "+r.Interface+" "+r.State)
	}
	return all
}

// waitForNetwork waits until containerd has loaded the network of a name.
func (n *node) waitForNetwork(name string) {
	n.t.Helper()
	eventually(n.t, func() bool {
		got, err := n.Status(n.t.Context(), &cri.StatusRequest{Verbose: true})
		nodetest.OK(n.t, err)
		var loaded struct {
			Networks []struct{ Config struct{ Name string } }
		}
		nodetest.OK(n.t, json.Unmarshal([]byte(got.GetInfo()["cniconfig"]), &loaded))
		last := len(loaded.Networks) - 1
		return last >= 0 && loaded.Networks[last].Config.Name == name
	})
}

func bin(name string) string { return filepath.Join(os.Getenv(binEnv), name) }
