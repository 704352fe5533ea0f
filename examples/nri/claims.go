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
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// cniVersion is put into a network of a user that has no version.
const cniVersion = "1.0.0"

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
	driver *dra.Driver
}

// openClaims starts the DRA driver that conf configures, if any. It does not wait for the
// API server, nor for a kubelet that has never run on the node. The caller closes what it
// returns.
func openClaims(ctx context.Context, conf Config, life *lifecycle.Manager, log *slog.Logger) (_ *claims, err error) {
	if conf.DRA.Driver == "" {
		return nil, nil
	}
	ctx = context.WithoutCancel(ctx) // close ends what it starts
	c := &claims{conf: conf, life: life, log: log}
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
	config := dra.Config{
		Name: conf.DRA.Driver, Node: conf.NodeName, View: c.view,
		Store:  dra.Store{Dir: filepath.Join(conf.StateDir, "claims")},
		Policy: policy, Rules: c.rules, AllowedTypes: conf.DRA.AllowedTypes,
		Records: c.records, KubeletDir: conf.KubeletDir,
		Networks: conf.DRA.Networks, Network: c.offered, OfferInterval: time.Duration(conf.Sweep),
		Logger: log,
	}
	if conf.DRA.Metadata {
		config.CDIDir = cmp.Or(conf.DRA.CDIDir, kubeletplugin.DefaultCDIDir)
	}
	if c.driver, err = dra.Start(ctx, config); err != nil {
		return nil, err
	}
	if err := c.driver.Err(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return c, nil
}

// close ends the driver. Prepared claims stay, for the next one.
func (c *claims) close() {
	if c == nil {
		return
	}
	c.driver.Stop()
	if c.view != nil {
		c.view.Close()
	}
}

// of returns the claims of a pod, and fails if it may not have one of them. The kubelet has them
// prepared before it has the runtime start the pod.
func (c *claims) of(ctx context.Context, podUID string) ([]dra.Claim, error) {
	if c == nil {
		return nil, nil
	}
	return c.driver.Claims(ctx, nad.Pod{UID: podUID})
}

// wanted returns an attachment for each network of a pod's claims. pod has what they have in
// common. They have an IfName if the claim has one.
func (c *claims) wanted(ctx context.Context, podUID string, pod delegate.Attachment) ([]delegate.Attachment, error) {
	all, err := c.of(ctx, podUID)
	if err != nil {
		return nil, err
	}
	var wanted []delegate.Attachment
	for _, claim := range all {
		for _, n := range claim.Networks {
			a, err := c.attachment(ctx, n, pod)
			if err != nil {
				return nil, fmt.Errorf("%v: %w", n.Claim, err)
			}
			wanted = append(wanted, a)
		}
	}
	return wanted, nil
}

// attachment returns the attachment for a network of a claim.
func (c *claims) attachment(ctx context.Context, n dra.Network, a delegate.Attachment) (_ delegate.Attachment, err error) {
	origin := nad.Origin{Use: nad.Claimed, Claim: n.Claim}
	if n.Config != "" {
		a.Network, err = n.Network(c.rules)
	} else {
		var d nad.Definition
		a.Network, d, err = c.definition(c.view.Definition(ctx, n.Definition))
		origin.Definition, origin.UID, origin.Version = d.Ref, d.UID, d.Version
	}
	a.IfName, a.Origin = n.IfName, origin.JSON()
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
	if c != nil {
		c.driver.Attached(podUID, err)
	}
}

// describe writes the files from which containers know what their claims are attached to.
func (c *claims) describe(ctx context.Context, podUID string) {
	if c == nil {
		return
	}
	if err := c.driver.UpdateMetadata(ctx, podUID); err != nil {
		c.log.WarnContext(ctx, "containers do not see what their claims are attached to", slog.Any("err", err))
	}
}

// records is [dra.Config.Records]. A pod has stopped before the kubelet releases its claims, so
// that there is something to detach only if that has failed, or if its event was lost.
func (c *claims) records(ctx context.Context, podUID string) (all []dra.Record, err error) {
	late := time.Now().Add(detachedTimeout) // for all of them
	records, err := daemon.OfPod(ctx, podUID, c.conf.StateDir)
	for _, r := range records {
		all = append(all, dra.Record{Record: r.Record, Detach: func(ctx context.Context, ifname string) error {
			ctx, cancel := context.WithDeadline(ctx, late)
			defer cancel()
			return c.life.Detach(ctx, r.Key, ifname)
		}})
	}
	return all, err
}

// offered is [dra.Config.Network].
func (c *claims) offered(ctx context.Context, name string) (n netconf.Network, err error) {
	if ref, notADefinition := nad.ParseRef(name, ""); notADefinition == nil {
		n, _, err = c.definition(c.view.KnownDefinition(ctx, ref))
	} else {
		n, err = netconf.Load(os.DirFS(c.conf.ConfDir), name)
	}
	if err == nil {
		err = c.life.Status(ctx, []netconf.Network{n})
	}
	return n, err
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
