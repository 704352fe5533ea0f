package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
)

// A Config is the configuration of a [View].
type Config struct {
	// Kubeconfig is the path of a kubeconfig file. Empty means the cluster that
	// the process runs in: the service account that Kubernetes mounts into pods.
	// The file, and those it names, are read again when they change. They must be
	// regular files, or links to them. The file need not exist yet.
	Kubeconfig string

	// Dial connects to the API server, or to a proxy, at an address such as
	// "10.96.0.1:443". With Dial the environment names no proxy. Nil means TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Node is the node whose pods and devices are watched. Empty means that
	// [View.Pod] and [View.DeviceAttributes] know none.
	Node string

	// Pods makes the View watch the pods of Node from the beginning. Otherwise the
	// first [View.Pod] starts the watch: a node whose runtime passes the annotations
	// of pods does not need it.
	Pods bool

	// NADWait and PodWait limit how long [View.Definition] and [View.Pod] wait for
	// an object that the watch has not delivered yet. 0 means 2 s, a negative
	// duration not to wait.
	NADWait, PodWait time.Duration

	// MaxViewAge limits the age of the View, see [Resource.Age]. Look-ups in an older
	// View fail with CNI code 11. 0 means no limit.
	MaxViewAge time.Duration

	// Mirror is the absolute path of a directory for a copy of all definitions,
	// as [nad.Load] reads it. The View uses the copy until it has read the
	// definitions from the API server. It creates the directory if there is none.
	// Empty means no copy.
	Mirror string

	// UserAgent is the name of the program: the User-Agent of all requests, and the
	// controller that reports Events. It has the form of a Kubernetes qualified name,
	// such as "example.com/daemon". Empty means "metacni".
	UserAgent string

	// Logger reports watches that have been down for 30 s, and their return, and a
	// Mirror that cannot be written. Nil means no log.
	Logger *slog.Logger

	// Observer is called after each request. It must not block, and several
	// goroutines may call it at the same time. Nil means none.
	Observer func(Request)
}

// errNoNode is the error for pods without Config.Node.
var errNoNode = errors.New("the name of the node is needed to watch its pods")

// check fails for a configuration that can never work.
func (c Config) check() error {
	switch {
	case c.Pods && c.Node == "":
		return errNoNode
	case c.Mirror != "" && !filepath.IsAbs(c.Mirror):
		return fmt.Errorf("mirror: %q is not an absolute path", c.Mirror)
	case c.MaxViewAge < 0:
		return fmt.Errorf("maxViewAge: %v is negative", c.MaxViewAge)
	case validation.IsQualifiedName(c.userAgent()) != nil:
		return fmt.Errorf("userAgent: %q is not a qualified name, as the controller of an Event has to be", c.UserAgent)
	}
	return nil
}

func (c Config) userAgent() string { return cmp.Or(c.UserAgent, "metacni") }

// A View is a daemon's picture of a cluster. Goroutines may share it.
type View struct {
	config Config
	log    *slog.Logger

	transport *transport
	core      client // the API group "", version v1: pods
	events    client // events.k8s.io/v1
	resources client // resource.k8s.io/v1: ResourceSlices
	nads      client // k8s.cni.cncf.io/v1

	definitions *part[known]
	pods        *part[Pod]   // nil without a node
	slices      *part[slice] // the same

	ctx    context.Context    //nolint:containedctx // ends with the View
	cancel context.CancelFunc // ends what runs in the background
	mu     sync.Mutex         // guards closed, and wg from being added to after that
	closed bool
	wg     sync.WaitGroup
}

// Open starts a View of the cluster that c names. It never waits for the API server, and
// never fails because of it: a kubeconfig that does not exist yet, cannot be read, or has
// no valid credentials is tried again for as long as the View is open. Open fails for a
// Config that can never work: without Kubeconfig outside of a cluster, Pods without
// Node, a Mirror that is not an absolute path, a negative MaxViewAge, or a UserAgent that
// is not a qualified name.
//
// The View ends with ctx, or with [View.Close].
func Open(ctx context.Context, c Config) (*View, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	v := &View{config: c, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler))}
	v.transport = newTransport(c)
	if _, err := v.transport.session(); err != nil {
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, err
		}
		v.log.WarnContext(ctx, "no credentials for the Kubernetes API yet", "error", err)
	}
	if err := v.clients(); err != nil {
		return nil, err
	}
	ctx, v.cancel = context.WithCancel(ctx)
	v.ctx = ctx
	v.start(ctx)
	return v, nil
}

// start starts what runs in the background.
func (v *View) start(ctx context.Context) {
	v.definitions = newPart(ctx, v, resource{
		client: v.nads, name: definitionResource, list: func() runtime.Object { return &definitionList{} }, newest: true,
	}, keepDefinition)
	if v.config.Mirror != "" {
		m := newMirror(v.config.Mirror, v.log, v.definitions.store)
		v.wg.Go(func() { m.run(ctx) })
	}
	watchPart(v, v.definitions, &definition{})
	if v.config.Node != "" {
		v.pods = newPart(ctx, v, resource{
			client: v.core, name: "pods", list: func() runtime.Object { return &corev1.PodList{} },
			selector: fields.OneTermEqualSelector("spec.nodeName", v.config.Node).String(),
		}, keepPod)
		v.slices = newPart(ctx, v, resource{
			client: v.resources, name: "resourceslices", list: func() runtime.Object { return &resourcev1.ResourceSliceList{} },
			selector: fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, v.config.Node).String(),
		}, keepSlice)
	}
	if v.config.Pods {
		watchPart(v, v.pods, &corev1.Pod{})
	}
}

// watchPart starts the watch that fills p, unless it is running or v is closed.
func watchPart[T any](v *View, p *part[T], example runtime.Object) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed && p.watched.CompareAndSwap(false, true) {
		v.wg.Go(func() { p.source.run(p.source.ctx, example, p.store) })
	}
}

// Close ends the View and waits for its goroutines. Look-ups fail afterwards.
func (v *View) Close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.cancel()
	v.wg.Wait()
	v.transport.close()
}
