package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/metacni/metacni/netconf/nad"
)

// A Config is the configuration of a [Driver].
type Config struct {
	// Name is the name of the driver, a DNS subdomain, in DeviceClasses, claims and slices.
	Name string

	// Node is the name of the node, and of the pool of its devices.
	Node string

	// Client is for the claims and ResourceSlices. It should send protobuf: see
	// [Driver.Attached].
	Client kubernetes.Interface

	// Store keeps the claims that are prepared. No other driver may have the same one.
	Store Store

	// Policy says which definitions the claims of a namespace may name, as if the pod had
	// selected them.
	Policy nad.Policy

	// Rules are those for networks in claims.
	Rules nad.Rules

	// Attachments returns what the pod of a claim is attached to because of the claim, from
	// the records of its newest sandbox. It is called at any time, by several goroutines. It
	// must end soon after its context: while the kubelet moves a claim to another pod, no
	// other claim is prepared.
	Attachments func(ctx context.Context, c Claim) ([]Attachment, error)

	// Detach removes all attachments that are there because of a claim, in all sandboxes of
	// its pod. It returns nil if there are none. Only c.UID and c.Pod are always set. It is
	// called by several goroutines, also for the same claim: the kubelet asks again when it
	// has waited too long. It must end soon after its context.
	Detach func(ctx context.Context, c Ref) error

	// RegistryDir is where the kubelet looks for sockets of plugins, and PluginDir is the
	// directory of the driver's own socket, and of what CDIDir makes. Empty means those of
	// /var/lib/kubelet. The first must exist. The second is made if it is missing.
	RegistryDir, PluginDir string

	// KubeletPluginDir is PluginDir as the kubelet and the runtime find it, where this
	// process has another root directory. Empty means that it is the same path.
	KubeletPluginDir string

	// CDIDir makes containers see a file with the interface and addresses of each device
	// (KEP-5304): the directory of the CDI specifications for it, which the runtime reads.
	// Empty means no such files. See [Driver.UpdateMetadata]. KubeletPluginDir must then be
	// the same directory for this process too.
	CDIDir string

	// RollingUpdate is the UID of the pod of this process, and lets the driver of the next
	// pod start before this one has stopped: each has sockets of its own, and calls of the
	// kubelet come one at a time. The kubelet must be 1.33 or later. Empty means that there is
	// one process at a time.
	RollingUpdate string

	// SweepInterval is the time between two passes of [Driver.Sweep]. 0 means 10 minutes. A
	// negative one is an error.
	SweepInterval time.Duration

	// Logger reports what goes wrong in the background. Nil means no log.
	Logger *slog.Logger
}

func (c Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.New(slog.DiscardHandler)
}

func (c Config) check() error {
	switch {
	case c.Name == "", c.Node == "", c.Store.Dir == "":
		return errors.New("the names of the driver and the node, and a directory for claims are needed")
	case c.Client == nil, c.Attachments == nil, c.Detach == nil:
		return errors.New("a client, Attachments and Detach are needed")
	case c.SweepInterval < 0:
		return fmt.Errorf("a negative interval, %v", c.SweepInterval)
	case c.RollingUpdate != "" && !isUID(c.RollingUpdate):
		return fmt.Errorf("RollingUpdate: %q is not a UID", c.RollingUpdate)
	}
	if why := validation.IsDNS1123Subdomain(c.Name); len(why) > 0 {
		return fmt.Errorf("DRA driver %q: %s", c.Name, why[0])
	}
	return nil
}

// pluginDir returns the directory of the driver's socket.
func (c Config) pluginDir() string {
	return cmp.Or(c.PluginDir, filepath.Join(kubeletplugin.KubeletPluginsDir, c.Name))
}

// kubeletPluginDir returns the same as the kubelet finds it.
func (c Config) kubeletPluginDir() string { return cmp.Or(c.KubeletPluginDir, c.pluginDir()) }

// makeDirs makes the directory of the socket, unless there is no kubelet.
func (c Config) makeDirs() error {
	if _, err := os.Stat(cmp.Or(c.RegistryDir, kubeletplugin.KubeletRegistryDir)); err != nil {
		return fmt.Errorf("the directory in which the kubelet finds plugins: %w", err)
	}
	if err := os.MkdirAll(c.pluginDir(), 0o750); err != nil {
		return err
	}
	if c.CDIDir == "" || c.kubeletPluginDir() == c.pluginDir() {
		return nil
	}
	ours, err := os.Stat(c.pluginDir())
	if err != nil {
		return err
	}
	if same, err := os.Stat(c.kubeletPluginDir()); err != nil || !os.SameFile(ours, same) {
		return fmt.Errorf("%s is not the same directory for the kubelet and for this process, which metadata needs: mount it here too", c.kubeletPluginDir())
	}
	return nil
}

func (c Config) sweepInterval() time.Duration {
	if c.SweepInterval != 0 {
		return c.SweepInterval
	}
	return 10 * time.Minute
}

func (c Config) options() []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(c.Name), kubeletplugin.NodeName(c.Node), kubeletplugin.KubeClient(c.Client),
		// A plugin that hangs while a claim is released must not delay other pods. But two
		// drivers with one Store have no other lock.
		kubeletplugin.Serialize(c.RollingUpdate != ""),
		kubeletplugin.PluginDataDirectoryPath(c.kubeletPluginDir()), kubeletplugin.FlockDirectoryPath(c.pluginDir()),
		kubeletplugin.RollingUpdate(types.UID(c.RollingUpdate)),
	}
	if c.kubeletPluginDir() != c.pluginDir() {
		options = append(options, kubeletplugin.PluginListener(func(ctx context.Context, path string) (net.Listener, error) {
			return listen(ctx, filepath.Join(c.pluginDir(), filepath.Base(path)))
		}))
	}
	if c.RegistryDir != "" {
		options = append(options, kubeletplugin.RegistrarDirectoryPath(c.RegistryDir))
	}
	if c.CDIDir != "" {
		options = append(options, kubeletplugin.EnableDeviceMetadata(true), kubeletplugin.CDIDirectory(c.CDIDir),
			kubeletplugin.MetadataVersions(v1alpha1.SchemeGroupVersion))
	}
	return options
}

// listen listens at a path, in place of a process that has ended. The socket is removed when
// the listener is closed.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "unix", path)
}

// A Driver is a DRA driver whose devices are networks. The kubelet calls it before it creates
// a pod, and after the pod has ended. Goroutines may share a Driver.
type Driver struct {
	config Config
	log    *slog.Logger
	helper *kubeletplugin.Helper
	writer *writer
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex // held while the Store changes

	// requests is held for reading by requests of the kubelet. The helper does not wait for
	// those that run when it stops.
	requests sync.RWMutex
	stopped  bool
}

// Start starts a Driver, and registers it with the kubelet. It does not wait for the API
// server. It fails for a Config that can never work, and if a socket cannot be made: a
// RegistryDir that is missing may come with the kubelet. The Driver ends with ctx, or with
// [Driver.Stop].
func Start(ctx context.Context, c Config) (*Driver, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := c.makeDirs(); err != nil {
		return nil, fmt.Errorf("DRA driver %s: %w", c.Name, err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.FromSlogHandler(c.logger().Handler())))
	d := &Driver{config: c, log: c.logger(), cancel: cancel}
	d.writer = newWriter(d)
	if err := c.Store.clean(); err != nil {
		d.log.WarnContext(ctx, "temporary files of prepared claims not removed", "error", err)
	}
	var err error
	if d.helper, err = kubeletplugin.Start(ctx, plugin{d}, c.options()...); err != nil {
		cancel()
		return nil, fmt.Errorf("DRA driver %s: %w", c.Name, err)
	}
	d.wg.Go(func() { d.writer.run(ctx) })
	d.wg.Go(func() { d.sweepOften(ctx) })
	return d, nil
}

// Stop ends the Driver, and waits for its goroutines and for requests of the kubelet, whose
// contexts end. The kubelet does not unprepare anything for that: claims stay prepared for the
// next Driver with the same Store. Stop may be called again.
func (d *Driver) Stop() {
	d.cancel()
	d.helper.Stop()
	d.wg.Wait()
	d.requests.Lock()
	defer d.requests.Unlock()
	d.stopped = true
}

// request waits for the end of a Stop, and fails after it. Otherwise the caller calls done
// when it has done what the kubelet asks for.
func (d *Driver) request() (done func(), err error) {
	d.requests.RLock()
	if d.stopped {
		d.requests.RUnlock()
		return nil, errors.New("the DRA driver has ended")
	}
	return d.requests.RUnlock, nil
}

// Claims returns the claims that are prepared for a pod, see [Store.Pod]. The ADD of the pod
// attaches it to their networks.
func (d *Driver) Claims(podUID string) ([]Claim, error) { return d.config.Store.Pod(podUID) }

// A plugin is what the helper calls.
type plugin struct{ *Driver }

// PrepareResourceClaims records what claims want. It makes no request and runs no plugin.
func (p plugin) PrepareResourceClaims(ctx context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	done, err := p.request()
	if err != nil {
		return nil, err
	}
	defer done()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		claim, err := p.prepare(ctx, c)
		if err != nil {
			p.log.WarnContext(ctx, "claim not prepared", "claim", c.Namespace+"/"+c.Name, "error", err)
		}
		results[c.UID] = kubeletplugin.PrepareResult{Err: err, Devices: claim.devices("")}
	}
	return results, nil
}

// prepare records what a claim wants. It writes again what is recorded already: an earlier
// attempt may have failed before the record was safe.
func (d *Driver) prepare(ctx context.Context, c *resourcev1.ResourceClaim) (Claim, error) {
	claim, err := claimOf(c, d.config.Name)
	if err == nil {
		err = claim.check(d.config.Policy, d.config.Rules)
	}
	if err != nil {
		return Claim{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.free(ctx, claim); err != nil {
		return Claim{}, err
	}
	others, damaged, err := d.config.Store.All()
	for _, e := range damaged {
		d.log.WarnContext(ctx, "prepared claim ignored", "error", e)
	}
	if err == nil {
		err = claim.conflict(others)
	}
	if err == nil {
		err = d.config.Store.put(claim)
	}
	if known := (*Error)(nil); err != nil && !errors.As(err, &known) {
		err = &Error{Claim: claim.Ref, Err: err}
	}
	if err != nil {
		return Claim{}, err
	}
	return claim, nil
}

// free removes the records of a claim for earlier pods. The API server says that the claim is
// reserved for another pod now, and so the kubelet has lost an earlier one. It fails with
// [ErrInUse] while the earlier pod is attached. The caller holds d.mu.
func (d *Driver) free(ctx context.Context, claim Claim) error {
	refs, err := d.config.Store.find(claim.UID)
	if err != nil {
		return &Error{Claim: claim.Ref, Err: err}
	}
	for _, ref := range refs {
		if ref.Pod == claim.Pod {
			continue
		}
		earlier := claim
		earlier.Pod, earlier.PodName = ref.Pod, ""
		attached, err := d.config.Attachments(ctx, earlier)
		if err == nil && len(attached) > 0 {
			return &Error{Claim: claim.Ref, Kind: ErrInUse, Err: fmt.Errorf("the pod with UID %s is still attached", ref.Pod)}
		}
		if err == nil {
			err = d.remove(earlier.Ref)
		}
		if err != nil {
			return &Error{Claim: claim.Ref, Err: err}
		}
	}
	return nil
}

// devices returns what the kubelet is told of the devices of a request, or of all requests.
func (c Claim) devices(request string) []kubeletplugin.Device {
	var all []kubeletplugin.Device
	for _, n := range c.Networks {
		if request != "" && n.Request != request {
			continue
		}
		device := kubeletplugin.Device{Requests: []string{n.Request}, PoolName: n.Pool, DeviceName: n.Device}
		if n.Share != "" {
			share := types.UID(n.Share)
			device.ShareID = &share
		}
		all = append(all, device)
	}
	return all
}

// UnprepareResourceClaims detaches what is still attached because of claims, and forgets them.
func (p plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	done, err := p.request()
	if err != nil {
		return nil, err
	}
	defer done()
	results := map[types.UID]error{}
	for _, c := range claims {
		results[c.UID] = p.unprepare(ctx, c)
	}
	return results, nil
}

func (d *Driver) unprepare(ctx context.Context, c kubeletplugin.NamespacedObject) error {
	refs, err := d.config.Store.find(string(c.UID))
	for _, ref := range refs {
		ref.Namespace, ref.Name = c.Namespace, c.Name
		if err = d.config.Detach(ctx, ref); err == nil {
			d.mu.Lock()
			err = d.remove(ref)
			d.mu.Unlock()
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		d.log.WarnContext(ctx, "claim not released", "claim", c.Namespace+"/"+c.Name, "error", err)
		return &Error{Claim: Ref{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}, Err: err}
	}
	return nil
}

// remove removes the record of a claim, and everything that is in memory about it. The caller
// holds d.mu.
func (d *Driver) remove(r Ref) error {
	if err := d.config.Store.remove(r); err != nil {
		return err
	}
	d.writer.forget(r)
	return nil
}

// HandleError logs errors of the helper. It tries again after those of ResourceSlices. After any
// other, such as that of a socket, only the next Driver can serve the kubelet.
func (p plugin) HandleError(ctx context.Context, err error, msg string) {
	level := slog.LevelError
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		level = slog.LevelWarn
	}
	p.log.Log(ctx, level, "DRA driver: "+msg, "error", err)
}
