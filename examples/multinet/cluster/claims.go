package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// startClaims starts what the configuration says about claims: the driver, which ends with ctx.
// The caller waits for others. Networks are offered when the daemon serves ADDs: resident plugins
// have been launched then.
func (c *Cluster) startClaims(ctx context.Context, others *sync.WaitGroup) error {
	d := c.conf.DRA
	if d == nil {
		c.warnOfClaims(ctx)
		return nil
	}
	kubeletDir, err := c.conf.Root.Node(c.conf.KubeletDir)
	if err != nil {
		return fmt.Errorf("kubeletDir: %w", err)
	}
	config := dra.Config{
		Name: d.Driver, Node: c.conf.Node, View: c.view, Ready: c.ready, Dir: c.conf.ClaimDir,
		AllowedTypes: d.AllowedTypes, Records: c.recordsOfPod, Networks: d.Networks, Network: c.offered,
		KubeletDir: kubeletDir, Resolve: c.conf.Root.Resolve,
		RollingUpdate: d.podUID, Logger: c.log,
	}
	if d.Metadata {
		config.CDIDir = cmp.Or(d.CDIDir, defaultCDIDir)
	}
	rules, err := multinet.NewReviewer(c.plugin.Own)
	if err == nil {
		config.Policy, config.Rules = rules.Claims()
		c.driver, err = dra.Start(ctx, config)
	}
	if err != nil {
		return fmt.Errorf("dra: %w", err)
	}
	others.Go(func() {
		<-ctx.Done()
		c.driver.Stop()
	})
	return nil
}

// offered is [dra.Config.Network].
func (c *Cluster) offered(ctx context.Context, name string) (netconf.Network, error) {
	asked := c.Multinet()
	asked.Definition = func(ctx context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
		return c.view.KnownDefinition(ctx, r)
	}
	return multinet.Status(ctx, c.plugin.System(), skel.CmdArgs{StdinData: c.plugin.Own}, asked, name)
}

// claimed returns the networks that the pod p is to be attached to because of its claims, in the
// order of the names of these. If the view does not have the pod, what is prepared decides.
func (c *Cluster) claimed(ctx context.Context, p nad.Pod) ([]multinet.Claimed, error) {
	pod, _ := c.view.KnownPod(p)
	prepared, err := c.driver.Claims(ctx, p, pod.Claims...)
	if a := addOf(ctx); a != nil {
		a.claims = err != nil || len(prepared) > 0
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(prepared, func(a, b dra.Claim) int { return strings.Compare(a.Name, b.Name) })
	var all []multinet.Claimed
	for _, claim := range prepared {
		for _, n := range claim.Networks {
			network := multinet.Claimed{Claim: n.Claim, IfName: n.IfName, Definition: n.Definition}
			if n.Config != "" {
				if network.Network, err = netconf.Parse([]byte(n.Config)); err != nil {
					return nil, fmt.Errorf("claim %v: request %q: %w", claim.Ref, n.Claim.Request, err)
				}
			}
			all = append(all, network)
		}
	}
	return all, nil
}

// held fails if one of the claims in the plan for the pod p was released since claimed.
func (c *Cluster) held(ctx context.Context, p nad.Pod, plan []delegate.Attachment) error {
	return c.driver.Held(ctx, p, plan)
}

// tellContainers tells the containers of the pod p, which is attached, what their claims are
// attached to. A failure is no reason to fail the ADD: the pod has its networks.
func (c *Cluster) tellContainers(ctx context.Context, p nad.Pod) {
	if a := addOf(ctx); a == nil || !a.claims {
		return
	}
	if err := c.driver.UpdateMetadata(ctx, p.UID); err != nil {
		text := status.Error(err).Error() // in one line
		c.log.LogAttrs(ctx, slog.LevelWarn, "containers do not see what their claims are attached to", slog.String("pod", p.String()), slog.String("error", text))
		c.events.Pod(p, claimMetadataLost, "AddNetwork", text)
	}
}

// Swept says that attachments of any pods were removed.
func (c *Cluster) Swept() { c.driver.Refresh() }

// recordsOfPod is [dra.Config.Records]. For an ADD it shows those of its container.
func (c *Cluster) recordsOfPod(ctx context.Context, podUID string) (all []dra.Detachable, err error) {
	var records []program.Record
	switch a := addOf(ctx); {
	case podUID == "":
		records, err = c.plugin.Records(ctx)
	case a != nil:
		records, _, err = c.recordsOf(ctx, a.container)
	default:
		records, err = program.OfPod(ctx, podUID, c.plugin.Dirs()...)
	}
	for _, r := range records {
		all = append(all, dra.Detachable{AddRecord: r.AddRecord, Detach: func(ctx context.Context, ifname string) error {
			defer c.recorded(multinet.PodOf(r.AddRecord))
			last := c.plugin.Last(r.Dir, r.Key.Network)
			return multinet.Secondary(last.StdinData, nil).Do(ctx, c.plugin.System(), delegate.CommandDel,
				skel.CmdArgs{ContainerID: r.Key.ContainerID, IfName: ifname, Path: last.Path})
		}})
	}
	return all, err
}

// errNoDRA is returned for a pod whose claims an earlier daemon has prepared.
var errNoDRA = types.NewError(types.ErrTryAgainLater, `its networks need "dra" in the configuration of multinetd: add it, or delete the pod`, "")

// noClaims fails for a pod that has claims, which a daemon without dra cannot attach: the pod must
// not start without its networks.
func (c *Cluster) noClaims(ctx context.Context, p nad.Pod) ([]multinet.Claimed, error) {
	if p.UID == "" {
		return nil, nil
	}
	prepared, err := dra.Prepared(ctx, c.conf.ClaimDir, p.UID)
	if err != nil || len(prepared) == 0 {
		return nil, err
	}
	return nil, fmt.Errorf("claim %v: %w", prepared[0].Ref, errNoDRA)
}

// warnOfClaims logs that claims are prepared which nobody can release, since there is no dra.
func (c *Cluster) warnOfClaims(ctx context.Context) {
	prepared, err := dra.Prepared(ctx, c.conf.ClaimDir, "")
	if n := len(prepared); n > 0 || err != nil {
		c.log.LogAttrs(ctx, slog.LevelWarn, `ResourceClaims are prepared, but "dra" is not in the configuration: their pods cannot start, and the kubelet cannot release them`,
			slog.Int("claims", n), slog.String("directory", c.conf.ClaimDir), slog.Any("error", err))
	}
}
