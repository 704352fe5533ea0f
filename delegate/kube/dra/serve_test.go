package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A kubelet that is installed again has new directories, and looks for sockets in them.
func TestTheDriverMakesLostSocketsAgain(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"registry", "plugin", "both", "socket"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil)
			a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
			mustPrepare(t, n.kubelet(t), a)
			nodetest.OK(t, n.publish(t.Context(), []resourcev1.Device{{Name: "storage"}}))
			remove := map[string][]string{
				"registry": {n.config.registry()}, "plugin": {n.config.plugin()}, "both": {n.config.registry(), n.config.plugin()},
				"socket": {filepath.Join(n.config.plugin(), "dra.sock")},
			}
			for _, path := range remove[lost] {
				nodetest.OK(t, os.RemoveAll(path))
			}
			if lost == "registry" || lost == "both" {
				nodetest.Until(t, "the kubelet is missed", func() bool { return n.Err() != nil })
				nodetest.Says(t, n.Err(), "the directory in which the kubelet finds plugins")
				nodetest.OK(t, os.Mkdir(n.config.registry(), 0o750))
			}
			nodetest.Until(t, "the sockets are there", func() bool {
				_, registry := os.Stat(filepath.Join(n.config.registry(), driverName+"-reg.sock"))
				_, plugin := os.Stat(filepath.Join(n.config.plugin(), "dra.sock"))
				return registry == nil && plugin == nil && n.Err() == nil
			})
			k := n.kubelet(t)
			mustPrepare(t, k, a, b)
			nodetest.OK(t, k.Unprepare(t.Context(), a))
			nodetest.OK(t, n.publish(t.Context(), nil))
			n.Stop()
			if left, _ := filepath.Glob(n.config.registry() + "/*"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// The next daemon may start before the last one has ended: its sockets stay.
func TestADriverThatStopsLeavesTheSocketsOfTheNext(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	next, err := Start(t.Context(), n.config)
	nodetest.OK(t, err)
	t.Cleanup(next.Stop)
	nodetest.Until(t, "the driver sees the next one", func() bool { return n.Err() != nil })
	nodetest.Is(t, n.Err(), errTaken)
	n.Stop()
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", nil)))
	nodetest.OK(t, next.Err())
}

// A helper that cannot serve any more is replaced.
func TestAHelperThatFailsIsReplaced(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.serving.Lock()
	first := n.service.helper
	n.serving.Unlock()
	plugin{n.Driver}.HandleError(t.Context(), errors.New("accept: too many open files"), "the server failed")
	nodetest.Until(t, "the helper is replaced", func() bool {
		n.serving.Lock()
		defer n.serving.Unlock()
		return n.service.helper != first
	})
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", nil)))
}

// The kubelet says whether it takes the driver, and the log repeats it.
func TestTheLogSaysWhetherTheKubeletTakesTheDriver(t *testing.T) {
	t.Parallel()
	var log strings.Builder // calls come one at a time
	d := &Driver{log: slog.New(slog.NewTextHandler(&log, nil)), config: Config{Name: driverName}}
	for _, row := range []struct {
		status *registration.RegistrationStatus
		want   string
	}{
		{&registration.RegistrationStatus{PluginRegistered: true}, "level=INFO msg=\"the kubelet has registered the DRA driver\" driver=" + driverName},
		{&registration.RegistrationStatus{Error: "no such version"}, "level=ERROR msg=\"the kubelet refuses the DRA driver\" driver=" + driverName + " error=\"no such version\""},
	} {
		log.Reset()
		handled := false
		_, err := d.intercept(t.Context(), row.status, nil, func(context.Context, any) (any, error) { handled = true; return nil, nil })
		if err != nil || !handled || !strings.Contains(log.String(), row.want) {
			t.Errorf("handled %v, %v: %s", handled, err, log.String())
		}
	}
	n := newNode(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	log.Reset()
	_ = n.kubelet(t)
	n.Stop()
	if !strings.Contains(log.String(), "the kubelet has registered the DRA driver") {
		t.Errorf("log: %s", log.String())
	}
}

// The kubelet hears the path that it knows, although the socket is elsewhere for the driver.
func TestTheSocketMayBeElsewhereForTheKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletDir(t)
	inRoot := func(path string) (string, error) { return filepath.Join(root, strings.TrimPrefix(path, "/node")), nil }
	n := newNode(t, func(c *Config) { c.KubeletDir, c.Resolve = "/node", inRoot })
	link := nodetest.ShortDir(t)
	k, err := dratest.Register(t.Context(), filepath.Join(root, "plugins_registry", driverName+"-reg.sock"), link)
	nodetest.OK(t, errors.Join(err, os.Symlink(root, filepath.Join(link, "node"))))
	defer func() { _ = k.Close() }()
	nodetest.Equal(t, "endpoint", k.Endpoint, "/node/plugins/"+driverName+"/dra.sock")
	mustPrepare(t, k, kubetest.Put(n.server, newClaim("a", nil)))
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
	late := nodetest.ShortDir(t)
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
	nodetest.Is(t, n.Err(), fs.ErrNotExist)
	nodetest.Says(t, n.Err(), n.config.registry())
	_, err := os.Stat(n.config.plugin())
	nodetest.Is(t, err, fs.ErrNotExist) // for no kubelet
	kubetest.Put(n.server, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	n.Attached("pod-web", nil)
	none := n.config.KubeletDir
	n.config.KubeletDir = late
	nodetest.OK(t, errors.Join(n.publish(t.Context(), []resourcev1.Device{{Name: "storage"}}), n.UpdateMetadata(t.Context(), "pod-web"), os.Symlink(late, none), os.Mkdir(n.config.registry(), 0o750)))
	nodetest.Until(t, "the driver serves", func() bool { return n.Err() == nil })
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", nil)))
	n.await(t, "published", func() bool { return len(kubetest.List[resourcev1.ResourceSlice](n.server)) == 1 })
	n.Stop()
	nodetest.Equal(t, "said", strings.Count(log.String(), "does not reach"), 1)
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
	c := kubetest.Put(n.server, newClaim("a", nil))
	mustPrepare(t, kubelets["pod-1"], c)
	n.Stop()
	n.Driver = d
	n.wantClaims(t, "pod-web", 1)
	nodetest.OK(t, kubelets["pod-2"].Unprepare(t.Context(), c))
	n.wantClaims(t, "pod-web", 0)
	for _, uid := range []string{"../x", "a b"} {
		next.RollingUpdate = uid
		_, err := Start(t.Context(), next)
		nodetest.Says(t, err, "RollingUpdate")
	}
}

// When Stop has returned, the driver calls nobody and writes nothing: the next one may start.
func TestStopWaitsForTheRequestsOfTheKubelet(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(t *testing.T, n *node, c *resourcev1.ResourceClaim){
		"unprepare": func(t *testing.T, n *node, c *resourcev1.ResourceClaim) {
			t.Helper()
			if n.kubelet(t).Unprepare(t.Context(), c) == nil {
				t.Error("released while it stops")
			}
		},
		"prepare": func(t *testing.T, n *node, c *resourcev1.ResourceClaim) {
			t.Helper()
			c = c.DeepCopy()
			c.Status.ReservedFor[0].UID = "pod-next" // so that the driver looks for attachments
			refused(t, n.kubelet(t), kubetest.Put(n.server, c), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			called, stopping, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			slow := func(ctx context.Context) error {
				close(called)
				<-ctx.Done() // Stop has begun
				<-stopping
				close(ended)
				return ctx.Err()
			}
			n := newNode(t, func(c *Config) {
				c.Records = func(ctx context.Context, _ string) ([]Record, error) { return nil, slow(ctx) }
			})
			a := kubetest.Put(n.server, newClaim("a", nil))
			mustPrepare(t, n.kubelet(t), a)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				ask(t, n, a)
			}()
			<-called
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				n.Stop()
			}()
			<-answered // the connection is closed, and the request still runs
			select {
			case <-stopped:
				t.Error("stopped while a request runs")
			default:
			}
			close(stopping)
			<-stopped
			select {
			case <-ended:
			default:
				t.Error("stopped before the request has ended")
			}
			n.wantClaims(t, "pod-web", 1)
			n.wantClaims(t, "pod-next", 0)
			if _, err := n.intercept(t.Context(), nil, nil, nil); err == nil {
				t.Error("a request after the end")
			}
		})
	}
}

// A daemon runs for months: nothing is kept in memory about claims that are released.
func TestNothingIsKeptOfClaimsThatAreReleased(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	for name, release := range map[string]func(c *resourcev1.ResourceClaim) error{
		"a": func(c *resourcev1.ResourceClaim) error { return k.Unprepare(t.Context(), c) },
		"b": func(c *resourcev1.ResourceClaim) error {
			kubetest.Delete[resourcev1.ResourceClaim](n.server, c.Namespace, c.Name)
			n.detach(string(c.UID))
			return n.sweepAll(t.Context())
		},
		"c": func(c *resourcev1.ResourceClaim) error { // the kubelet has lost the pod
			n.detach(string(c.UID))
			c = c.DeepCopy()
			c.Status.ReservedFor[0].UID = "pod-next"
			mustPrepare(t, k, kubetest.Put(n.server, c))
			return k.Unprepare(t.Context(), c)
		},
	} {
		c := kubetest.Put(n.server, newClaim(name, nil))
		mustPrepare(t, k, c)
		n.attach(t, "pod-web")
		n.await(t, "written", n.ready(name, "True"))
		nodetest.OK(t, release(c))
		n.writer.mu.Lock()
		nodetest.Equal(t, name, n.writer.failures, nil)
		n.writer.mu.Unlock()
	}
}

// The kubelet asks again when it has waited too long: requests for the same claim may run at
// once. What was asked for last is what the store has.
func TestRequestsForAClaimMayRunAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := kubetest.Put(n.server, newClaim("a", nil))
	for _, prepared := range []bool{true, false, true} {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, failures := prepareClaims(t, k, a); len(failures) > 0 {
					t.Error(failures)
				}
			})
			all.Go(func() {
				nodetest.OK(t, k.Unprepare(t.Context(), a))
			})
		}
		all.Wait()
		want := 0
		if prepared {
			mustPrepare(t, k, a)
			want = 1
		} else if err := k.Unprepare(t.Context(), a); err != nil {
			t.Error(err)
		}
		if claims, err := n.all(); len(claims) != want || err != nil {
			t.Errorf("%v, %v", claims, err)
		}
	}
}

// A claim whose record cannot be written is refused, and nothing is left of the attempt. Others
// are prepared, and so is the claim as soon as its record can be written.
func TestAClaimThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
	mustPrepare(t, k, a)
	blocker := filepath.Join(n.config.Dir, "pod-web@claim-b@claim.json")
	nodetest.OK(t, os.MkdirAll(filepath.Join(blocker, "x"), 0o700)) // no file can take this name
	refused(t, k, b, "claim blue/b: ")
	mustPrepare(t, k, a)
	nodetest.OK(t, os.RemoveAll(blocker))
	mustPrepare(t, k, b)
	if names, err := filepath.Glob(filepath.Join(n.config.Dir, "*.json")); len(names) != 2 || err != nil {
		t.Errorf("left: %v, %v", names, err)
	}
}

// The helper tries again what it says is recoverable.
func TestErrorsOfResourceSlicesAreWarnings(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	p := plugin{&Driver{log: slog.New(slog.NewTextHandler(&log, nil))}}
	p.HandleError(t.Context(), fmt.Errorf("slices: %w", kubeletplugin.ErrRecoverable), "failed")
	if !strings.Contains(log.String(), "level=WARN ") {
		t.Errorf("got %s", log.String())
	}
}

// A driver tries again for as long as it cannot serve: every attempt must end what it began.
func TestAnAttemptThatFailsLeavesNoGoroutine(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	config := n.config
	config.KubeletDir = filepath.Join(config.KubeletDir, strings.Repeat("long", 30)) // for a socket
	nodetest.OK(t, os.MkdirAll(config.registry(), 0o750))
	label := "a driver that fails in " + config.KubeletDir
	pprof.Do(t.Context(), pprof.Labels("test", label), func(ctx context.Context) {
		d, err := Start(ctx, config)
		if err != nil || d.Err() == nil {
			t.Fatalf("%v, it serves", err)
		}
		d.Stop()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		var all strings.Builder
		nodetest.OK(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		if !strings.Contains(all.String(), label) {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(all.String())
		}
		runtime.Gosched()
	}
}
