package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

const (
	// cniVersion is put into a network of a user that has no version.
	cniVersion = "1.0.0"

	// driverRetry is the time between two attempts to start the driver.
	driverRetry = 5 * time.Second

	// statusTimeout limits the STATUS of a network.
	statusTimeout = 10 * time.Second
)

var (
	errHost       = errors.New("the pod is on the host's network, to which nothing is attached")
	errUnattached = errors.New("the pod was started without nri, and runs without its networks: see attachRunning")
	errDevice     = &netconf.Error{Kind: netconf.ErrInvalid, Key: nad.ResourceAnnotation, Err: errors.New("nri knows no devices of the kubelet")}
)

// claims are the ResourceClaims of the node's pods: the node's DRA driver, and the cluster
// that it works for. A nil *claims is a node without them. Goroutines may share it.
type claims struct {
	conf  Config
	life  *lifecycle.Manager
	log   *slog.Logger
	rules nad.Rules // for networks of users

	view   *kube.View
	config dra.Config
	driver atomic.Pointer[dra.Driver] // nil until there is a kubelet
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// openClaims starts the DRA driver that conf configures, if any. It does not wait for the
// API server, nor for a kubelet that has never run on the node: it looks for one every retry.
// The caller closes what it returns.
func openClaims(ctx context.Context, conf Config, life *lifecycle.Manager, retry time.Duration, log *slog.Logger) (_ *claims, err error) {
	if conf.DRA.Driver == "" {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &claims{conf: conf, life: life, log: log, cancel: cancel}
	defer func() {
		if err != nil {
			c.close()
			err = fmt.Errorf("nri: dra: %w", err)
		}
	}()
	policy := nad.Policy{Isolation: conf.NamespaceIsolation}
	if policy.GlobalNamespaces, err = nad.ParseNamespaces(conf.GlobalNamespaces); err != nil {
		return nil, err
	}
	c.rules = nad.Rules{CNIVersion: cniVersion, Own: multinet.OwnTypes(), Allowed: conf.AllowedTypes}
	if !conf.NamespaceIsolation {
		c.rules.ConfDir = os.DirFS(conf.ConfDir)
	}
	if c.view, err = kube.Open(ctx, kube.Config{Kubeconfig: conf.Kubeconfig, UserAgent: "metacni-nri", Logger: log}); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(c.view.REST())
	if err != nil {
		return nil, err
	}
	c.config = dra.Config{
		Name: conf.DRA.Driver, Node: conf.NodeName, Client: client,
		Store:  dra.Store{Dir: filepath.Join(conf.StateDir, "claims")},
		Policy: policy, Rules: c.rules, AllowedTypes: conf.DRA.AllowedTypes,
		Attachments: c.attachments, Detach: c.detach,
		RegistryDir: filepath.Join(conf.KubeletDir, "plugins_registry"),
		PluginDir:   filepath.Join(conf.KubeletDir, "plugins", conf.DRA.Driver),
		Logger:      log,
	}
	if conf.DRA.Metadata {
		c.config.CDIDir = cmp.Or(conf.DRA.CDIDir, kubeletplugin.DefaultCDIDir)
	}
	err = c.start(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		log.WarnContext(ctx, "ResourceClaims are not served yet", slog.Any("err", err))
		err = nil
	}
	if err != nil {
		return nil, err
	}
	c.wg.Go(func() { c.serve(ctx, retry) })
	return c, nil
}

// start starts the driver.
func (c *claims) start(ctx context.Context) error {
	driver, err := dra.Start(ctx, c.config)
	if err == nil {
		c.driver.Store(driver)
	}
	return err
}

// serve starts the driver, unless that is done, and publishes networks until ctx ends.
func (c *claims) serve(ctx context.Context, retry time.Duration) {
	ticker := time.NewTicker(retry)
	defer ticker.Stop()
	for c.driver.Load() == nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := c.start(ctx); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.log.ErrorContext(ctx, "ResourceClaims are not served", slog.Any("err", err))
		}
	}
	c.publishOften(ctx)
}

// close ends the driver. Prepared claims stay, for the next one.
func (c *claims) close() {
	if c == nil {
		return
	}
	c.cancel()
	c.wg.Wait()
	if driver := c.driver.Load(); driver != nil {
		driver.Stop()
	}
	if c.view != nil {
		c.view.Close()
	}
}

// of returns the claims of a pod, and fails if it may not have one of them. The kubelet has them
// prepared before it has the runtime start the pod.
func (c *claims) of(podUID string) ([]dra.Claim, error) {
	if c == nil {
		return nil, nil
	}
	return c.config.Claims(podUID)
}

// wanted returns an attachment for each network of a pod's claims. pod has what they have in
// common. They have an IfName if the claim has one.
func (c *claims) wanted(ctx context.Context, podUID string, pod delegate.Attachment) ([]delegate.Attachment, error) {
	all, err := c.of(podUID)
	if err != nil {
		return nil, err
	}
	var wanted []delegate.Attachment
	for _, claim := range all {
		for _, n := range claim.Networks {
			a, err := c.attachment(ctx, claim, n, pod)
			if err != nil {
				return nil, fmt.Errorf("%v: %w", claim.Device(n), err)
			}
			wanted = append(wanted, a)
		}
	}
	return wanted, nil
}

// attachment returns the attachment for a network of a claim.
func (c *claims) attachment(ctx context.Context, claim dra.Claim, n dra.Network, a delegate.Attachment) (delegate.Attachment, error) {
	p, err := n.Parameters(claim.Namespace)
	if err != nil {
		return a, err
	}
	origin := nad.Origin{Use: nad.Claimed, Claim: claim.Device(n)}
	if p.Definition == (nad.Ref{}) {
		a.Network, err = p.Network(c.rules)
	} else {
		var d nad.Definition
		a.Network, d, err = c.definition(c.view.Definition(ctx, p.Definition))
		origin.Definition, origin.UID, origin.Version = d.Ref, d.UID, d.Version
	}
	a.IfName, a.Origin = p.IfName, origin.JSON()
	return a, err
}

// definition returns the network of the definition d, unless there is an err.
func (c *claims) definition(d nad.Definition, err error) (netconf.Network, nad.Definition, error) {
	if err != nil {
		return netconf.Network{}, d, err
	}
	n, err := d.Network(c.rules)
	if err == nil && d.Resource != "" {
		err = fmt.Errorf("NAD %s: %w", d.Ref, errDevice) // it would be attached without its device
	}
	return n, d, err
}

// told tells the driver that what a pod is attached to has changed, or that attaching or
// detaching it has failed with err. The API server will know by the status of the claims.
func (c *claims) told(podUID string, err error) {
	if c == nil {
		return
	}
	if driver := c.driver.Load(); driver != nil { // the next one begins with all claims
		driver.Attached(podUID, err)
	}
}

// describe writes the files from which containers know what their claims are attached to.
func (c *claims) describe(ctx context.Context, podUID string) {
	if c == nil {
		return
	}
	driver := c.driver.Load()
	if driver == nil {
		return
	}
	if err := driver.UpdateMetadata(ctx, podUID); err != nil {
		c.log.WarnContext(ctx, "containers do not see what their claims are attached to", slog.Any("err", err))
	}
}

// sandboxes calls f for each record of a pod.
func (c *claims) sandboxes(ctx context.Context, podUID string, f func(lifecycle.Record)) error {
	for r, err := range c.life.Records(ctx) {
		switch {
		case err != nil && r.Key == (scratch.Key{}):
			return err
		case err != nil: // the sweep reports damaged records
		case r.Key == key(r.Key.ContainerID) && podOf(r.Attached).UID == podUID:
			f(r)
		}
	}
	return nil
}

// attachments is [dra.Config.Attachments].
func (c *claims) attachments(ctx context.Context, claim dra.Claim) ([]dra.Attachment, error) {
	var newest lifecycle.Record
	err := c.sandboxes(ctx, claim.Pod, func(r lifecycle.Record) {
		if newest.Created.IsZero() || r.Created.After(newest.Created) {
			newest = r
		}
	})
	var whole []delegate.Attached
	for i, a := range newest.Attached {
		if newest.Whole(i) {
			whole = append(whole, a)
		}
	}
	return claim.Attached(whole), err
}

// detach is [dra.Config.Detach]. A pod has stopped before the kubelet releases its claims, so
// that there is something to detach only if that has failed, or if its event was lost.
func (c *claims) detach(ctx context.Context, claim dra.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, detachedTimeout)
	defer cancel()
	var errs []error
	err := c.sandboxes(ctx, claim.Pod, func(r lifecycle.Record) {
		for _, a := range slices.Backward(claim.Attached(r.Attached)) {
			errs = append(errs, c.life.Detach(ctx, r.Key, a.IfName))
		}
	})
	return errors.Join(append(errs, err)...)
}

// publishOften publishes the networks of the node until ctx ends.
func (c *claims) publishOften(ctx context.Context) {
	ticker := time.NewTicker(c.conf.Sweep.Duration)
	defer ticker.Stop()
	withdrawn := make(map[string]string) // why, by the name of the device
	for {
		c.publish(ctx, withdrawn)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// publish publishes the networks whose plugins are ready. It changes nothing if it cannot know
// a definition, because the API server is away.
func (c *claims) publish(ctx context.Context, withdrawn map[string]string) {
	var devices []dra.Device
	for _, conf := range c.conf.DRA.Networks {
		d := c.device(ctx, conf)
		if errors.Is(d.Err, kube.ErrNotSynced) || ctx.Err() != nil {
			return
		}
		if why := fmt.Sprint(d.Err); d.Err != nil && why != withdrawn[d.Name] {
			withdrawn[d.Name] = why
			c.log.WarnContext(ctx, "network withdrawn", slog.String("device", d.Name), slog.Any("err", d.Err))
		} else if d.Err == nil {
			delete(withdrawn, d.Name)
		}
		devices = append(devices, d)
	}
	if err := c.driver.Load().Publish(ctx, devices); err != nil {
		c.log.ErrorContext(ctx, "networks not published", slog.Any("err", err))
	}
}

// device returns a network as the scheduler knows it. It has an Err if pods cannot be
// attached to it now.
func (c *claims) device(ctx context.Context, conf dra.Offer) dra.Device {
	var n netconf.Network
	var err error
	if ref, ok := conf.Definition(); ok {
		n, _, err = c.definition(c.view.KnownDefinition(ctx, ref))
	} else {
		n, err = netconf.Load(os.DirFS(c.conf.ConfDir), conf.Network)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		err = c.life.Status(ctx, []netconf.Network{n})
	}
	return conf.As(n, err)
}

// aboutClaims returns err with the claims among as that it is about: the one whose plugin has
// failed, or those that ask for an interface which they cannot have.
func aboutClaims(as []delegate.Attachment, err error) error {
	var failed *delegate.Error
	var wrong *ifname.Error
	about := ""
	switch {
	case errors.As(err, &failed):
		about = failed.IfName
	case errors.As(err, &wrong):
		about = wrong.Name
	}
	for _, a := range slices.Backward(as) {
		if o := nad.ParseOrigin(a.Origin); about != "" && a.IfName == about && o.Use == nad.Claimed {
			err = fmt.Errorf("%v: %w", o.Claim, err)
		}
	}
	return err
}
