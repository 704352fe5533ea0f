package dra

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/nodetest"
)

// The kubelet hears the path that it knows, although the socket is elsewhere for the driver.
func TestTheSocketMayBeElsewhereForTheKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletDir(t)
	inRoot := func(path string) (string, error) { return filepath.Join(root, strings.TrimPrefix(path, "/node")), nil }
	n := newNode(t, func(c *Config) { c.KubeletDir, c.Resolve = "/node", inRoot })
	link := socketDir(t)
	k, err := dratest.Register(t.Context(), filepath.Join(root, "plugins_registry", driverName+"-reg.sock"), link)
	nodetest.OK(t, errors.Join(err, os.Symlink(root, filepath.Join(link, "node"))))
	defer func() { _ = k.Close() }()
	if want := "/node/plugins/" + driverName + "/dra.sock"; k.Endpoint != want {
		t.Errorf("endpoint %s, want %s", k.Endpoint, want)
	}
	mustPrepare(t, k, n.server.SetClaim(newClaim("a", nil)))
	n.restart(t) // in place of a socket that is still there
	n.Stop()
	if left, _ := filepath.Glob(root + "/plugins/*/*.sock"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	n.config.CDIDir = "/node/cdi"
	for _, same := range []bool{false, true} {
		if same {
			n.config.KubeletDir = filepath.Join(link, "node")
			n.config.Resolve = func(path string) (string, error) { return strings.Replace(path, n.config.KubeletDir, root, 1), nil }
		}
		d, err := Start(t.Context(), n.config)
		nodetest.OK(t, err)
		if err := d.Err(); (err == nil) != same || err != nil && !strings.Contains(err.Error(), "/node/plugins/"+driverName+" is not the same directory") {
			t.Errorf("metadata, the same directory %v: %v", same, err)
		}
		d.Stop()
	}
}

// A driver starts without a kubelet, says so once, and serves the kubelet that comes later,
// wherever that is then.
func TestTheKubeletMayComeLater(t *testing.T) {
	t.Parallel()
	var log strings.Builder // only read after Stop
	late := socketDir(t)
	n := newNode(t, func(c *Config) {
		c.KubeletDir = filepath.Join(c.KubeletDir, "none")
		none := c.KubeletDir
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.Resolve = func(path string) (string, error) {
			if _, err := os.Stat(filepath.Join(late, "plugins_registry")); err == nil {
				path = strings.Replace(path, none, late, 1)
			}
			return path, nil
		}
	})
	if err := n.Err(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), n.config.registry()) {
		t.Error(err)
	}
	if _, err := os.Stat(n.config.plugin()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory is made for no kubelet: %v", err)
	}
	n.server.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	n.Attached("pod-web", nil)
	none := n.config.KubeletDir
	n.config.KubeletDir = late
	nodetest.OK(t, errors.Join(n.publish(t.Context(), []resourcev1.Device{{Name: "storage"}}), n.UpdateMetadata(t.Context(), "pod-web"), os.Symlink(late, none), os.Mkdir(n.config.registry(), 0o750)))
	poll(t, "the driver serves", func() bool { return n.Err() == nil })
	mustPrepare(t, n.kubelet(t), n.server.SetClaim(newClaim("a", nil)))
	n.await(t, "published", func() bool { return len(n.server.ResourceSlices()) == 1 })
	n.Stop()
	if got := strings.Count(log.String(), "not served yet"); got != 1 || strings.Contains(log.String(), "ERROR") {
		t.Errorf("said %d times:\n%s", got, &log)
	}
}

// With rolling updates two drivers serve the same claims at the same time.
func TestTheNextDriverStartsBeforeTheLastHasStopped(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.RollingUpdate = "pod-1" })
	next := n.config
	next.RollingUpdate = "pod-2"
	d, err := Start(t.Context(), next)
	nodetest.OK(t, err)
	defer d.Stop()
	kubelets := map[string]*dratest.Kubelet{}
	for _, uid := range []string{"pod-1", "pod-2"} {
		k, err := dratest.Register(t.Context(), filepath.Join(n.config.registry(), driverName+"-"+uid+"-reg.sock"), "")
		nodetest.OK(t, err)
		defer func() { _ = k.Close() }()
		kubelets[uid] = k
	}
	c := n.server.SetClaim(newClaim("a", nil))
	mustPrepare(t, kubelets["pod-1"], c)
	writing := filepath.Join(n.config.Store.Dir, ".tmp-1") // by the first driver
	nodetest.OK(t, os.WriteFile(writing, nil, 0o600))
	third := n.config
	third.RollingUpdate = "pod-3"
	again, err := Start(t.Context(), third)
	nodetest.OK(t, err)
	again.Stop()
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("what another driver is writing: %v", err)
	}
	n.Stop()
	if claims, err := d.config.Claims("pod-web"); len(claims) != 1 || err != nil {
		t.Errorf("claims %v, %v", claims, err)
	}
	if err := unprepareClaim(t, kubelets["pod-2"], c); err != nil {
		t.Error(err)
	}
	if claims, err := d.config.Claims("pod-web"); len(claims) != 0 || err != nil {
		t.Errorf("claims %v, %v", claims, err)
	}
	for _, uid := range []string{"../x", "a b"} {
		next.RollingUpdate = uid
		if _, err := Start(t.Context(), next); err == nil || !strings.Contains(err.Error(), "RollingUpdate") {
			t.Errorf("%q: %v", uid, err)
		}
	}
}
