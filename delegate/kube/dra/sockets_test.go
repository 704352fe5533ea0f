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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/nodetest"
)

// The kubelet hears the path that it knows, although the socket is elsewhere for the driver.
func TestTheSocketMayBeElsewhereForTheKubelet(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	n := newNode(t, func(c *Config) {
		c.RegistryDir, c.PluginDir, c.KubeletPluginDir = root, filepath.Join(root, "plugins", "x"), "/plugins/x"
	})
	k, err := dratest.Register(t.Context(), filepath.Join(root, driverName+"-reg.sock"), root)
	nodetest.OK(t, err)
	defer func() { _ = k.Close() }()
	if k.Endpoint != "/plugins/x/dra.sock" {
		t.Errorf("endpoint %s", k.Endpoint)
	}
	mustPrepare(t, k, n.server.SetClaim(newClaim("a", nil)))
	n.restart(t) // in place of a socket that is still there
	n.Stop()
	if left, _ := filepath.Glob(root + "/plugins/x/*.sock"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	for _, same := range []bool{false, true} {
		n.config.CDIDir = t.TempDir()
		if same {
			n.config.KubeletPluginDir = filepath.Join(root, "link")
			nodetest.OK(t, os.Symlink(n.config.PluginDir, n.config.KubeletPluginDir))
		}
		d, err := Start(t.Context(), n.config)
		nodetest.OK(t, err)
		if err := d.Err(); (err == nil) != same || err != nil && !strings.Contains(err.Error(), "/plugins/x is not the same directory") {
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
	var late string
	n := newNode(t, func(c *Config) {
		late = filepath.Join(c.RegistryDir, "late")
		c.RegistryDir, c.PluginDir = filepath.Join(c.RegistryDir, "none"), filepath.Join(c.PluginDir, "none")
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.Locate = func(c *Config) error {
			if _, err := os.Stat(late); err == nil {
				c.RegistryDir = late
			}
			return nil
		}
	})
	if err := n.Err(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), n.config.RegistryDir) {
		t.Error(err)
	}
	if _, err := os.Stat(n.config.PluginDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory is made for no kubelet: %v", err)
	}
	n.server.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	n.Attached("pod-web", nil)
	nodetest.OK(t, errors.Join(n.publish(t.Context(), []device{{name: "storage"}}), n.UpdateMetadata(t.Context(), "pod-web"), os.Mkdir(late, 0o750)))
	poll(t, "the driver serves", func() bool { return n.Err() == nil })
	n.config.RegistryDir = late
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
		k, err := dratest.Register(t.Context(), filepath.Join(n.config.RegistryDir, driverName+"-"+uid+"-reg.sock"), "")
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
