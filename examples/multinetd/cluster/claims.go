package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// claimTimeout limits how long an ADD waits for the API server's word about claims that are not
// prepared.
const claimTimeout = time.Second

// claims attach pods to the networks of their ResourceClaims. A nil claims does nothing.
type claims struct {
	cluster *Cluster
	config  dra.Config
	driver  *dra.Driver
}

// newClaims returns the claims of c, whose view is open.
func (c *Cluster) newClaims() (*claims, error) {
	client, err := kubernetes.NewForConfigAndClient(c.view.REST())
	if err != nil {
		return nil, err
	}
	policy, rules, err := c.plugin.Rules()
	if err != nil {
		return nil, err
	}
	d := c.conf.DRA
	s := &claims{cluster: c, config: dra.Config{
		Name: d.Driver, Node: c.conf.Node, Client: client,
		Store: dra.Store{Dir: c.conf.ClaimDir}, Policy: policy, Rules: rules, AllowedTypes: d.AllowedTypes,
		RollingUpdate: d.podUID, Logger: c.log,
	}}
	s.config.Records = s.records
	s.config.Networks, s.config.Network = d.Networks, s.offered
	s.config.KubeletDir, s.config.Resolve = c.conf.Root.OnNode(c.conf.KubeletDir), c.conf.Root.Resolve
	if d.Metadata {
		s.config.CDIDir = cmp.Or(d.CDIDir, defaultCDIDir)
	}
	return s, nil
}

// start starts the driver, which ends with ctx. The caller waits for others. Networks are offered when
// the daemon serves ADDs: resident plugins have been launched then.
func (s *claims) start(ctx context.Context, others *sync.WaitGroup) (err error) {
	if s.driver, err = dra.Start(ctx, s.config); err != nil {
		return err
	}
	s.cluster.view.OnDefinition(s.driver.DefinitionChanged)
	others.Go(func() {
		defer s.driver.Stop()
		select {
		case <-ctx.Done():
		case <-s.cluster.ready:
			s.driver.Offer(ctx)
		}
	})
	return nil
}

// probe returns why claims are not served.
func (s *claims) probe() error {
	if s == nil {
		return nil
	}
	if err := s.driver.Err(); err != nil {
		return fmt.Errorf("ResourceClaims: %w", err)
	}
	return nil
}

// offered is [dra.Config.Network].
func (s *claims) offered(ctx context.Context, name string) (netconf.Network, error) {
	c := s.cluster
	asked := c.Multinet()
	asked.Definition = func(ctx context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
		return c.view.KnownDefinition(ctx, r)
	}
	return c.plugin.Status(ctx, name, asked)
}

// claimed returns the networks that the pod p is to be attached to because of its claims,
// in the order of the names of these. What is prepared says which they are. It fails if the
// configuration of the daemon has changed since and forbids them.
//
// The kubelet has had the claims of a pod prepared before the ADD. A record of that may be lost
// nevertheless. So an ADD fails with [dra.ErrNotPrepared] if the view knows that the pod has
// more claims, and the API server that one of these is allocated to the driver. It asks
// only for such claims, once. If the view does not have the pod, or the API server does not
// answer, what is prepared decides: pods without claims, and with those of other drivers,
// start during an outage, at the usual speed.
func (c *Cluster) claimed(ctx context.Context, p nad.Pod) ([]multinet.Claimed, error) {
	s := c.claims
	prepared, err := s.config.Claims(p.UID)
	if a := addOf(ctx); a != nil {
		a.claims = err != nil || len(prepared) > 0
	}
	if err != nil {
		return nil, err
	}
	if err := s.checkOthers(ctx, p, prepared); err != nil {
		return nil, err
	}
	slices.SortStableFunc(prepared, func(a, b dra.Claim) int { return strings.Compare(a.Name, b.Name) })
	var all []multinet.Claimed
	for _, claim := range prepared {
		for _, n := range claim.Networks {
			network, err := claimedNetwork(n)
			if err != nil {
				return nil, fmt.Errorf("claim %v: request %q: %w", claim.Ref, n.Claim.Request, err)
			}
			all = append(all, network)
		}
	}
	return all, nil
}

func claimedNetwork(n dra.Network) (c multinet.Claimed, err error) {
	c = multinet.Claimed{Claim: n.Claim, IfName: n.IfName, Definition: n.Definition}
	if n.Config != "" {
		c.Network, err = netconf.Parse([]byte(n.Config))
	}
	return c, err
}

// checkOthers fails if the pod p certainly has a claim for the driver that is not prepared.
func (s *claims) checkOthers(ctx context.Context, p nad.Pod, prepared []dra.Claim) error {
	pod, known := s.cluster.view.KnownPod(p)
	if !known {
		return nil
	}
	ctx, cancel := context.WithTimeout(klog.NewContext(ctx, logr.Discard()), claimTimeout)
	defer cancel()
	for _, name := range pod.Claims {
		if slices.ContainsFunc(prepared, func(c dra.Claim) bool { return c.Name == name }) {
			continue
		}
		ref := dra.Ref{Namespace: p.Namespace, Name: name, Pod: p.UID}
		ours, err := s.allocated(ctx, ref)
		if err != nil {
			s.cluster.log.LogAttrs(ctx, slog.LevelWarn, "claim of a pod is unknown, it is taken for that of another driver",
				slog.String("pod", p.String()), slog.String("claim", ref.String()), slog.Any("error", err))
			continue
		}
		if ours {
			return notPrepared(ref, s.probe())
		}
	}
	return nil
}

// notPrepared is the error for a claim that is not prepared, perhaps because of err.
func notPrepared(claim dra.Ref, err error) error {
	if err == nil {
		return fmt.Errorf("claim %v: %w", claim, dra.ErrNotPrepared)
	}
	return fmt.Errorf("claim %v: %w: %w", claim, dra.ErrNotPrepared, err)
}

// allocated reports whether the claim of that name has devices of the driver.
func (s *claims) allocated(ctx context.Context, ref dra.Ref) (bool, error) {
	claim, err := s.config.Client.ResourceV1().ResourceClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return r.Driver == s.config.Name }), nil
}

// held fails if a claim of the pod p that is attached now has been released since the ADD has read
// it: the release has not seen what was attached later, and others may get the device. The ADD is
// then undone.
func (s *claims) held(p nad.Pod, added []delegate.Attached) error {
	if s == nil {
		return nil
	}
	var prepared []dra.Claim
	for _, a := range added {
		claim := nad.ParseOrigin(a.Origin).Claim
		if claim.UID == "" {
			continue
		}
		if prepared == nil {
			var err error
			if prepared, err = s.config.Store.Pod(p.UID); err != nil {
				return err
			}
		}
		if !slices.ContainsFunc(prepared, func(c dra.Claim) bool { return c.UID == claim.UID }) {
			ref := dra.Ref{UID: claim.UID, Namespace: p.Namespace, Name: claim.Name, Pod: p.UID}
			return notPrepared(ref, errors.New("the kubelet has released it during the ADD"))
		}
	}
	return nil
}

// told tells the containers of the pod p, which is attached, what their claims are attached
// to. A failure is no reason to fail the ADD: the pod has its networks.
func (s *claims) told(ctx context.Context, p nad.Pod) {
	if s == nil {
		return
	}
	if a := addOf(ctx); a == nil || !a.claims {
		return
	}
	if err := s.driver.UpdateMetadata(ctx, p.UID); err != nil {
		text := status.Error(err).Error() // in one line
		s.cluster.log.LogAttrs(ctx, slog.LevelWarn, "containers do not see what their claims are attached to", slog.String("pod", p.String()), slog.String("error", text))
		s.cluster.events.Pod(p, claimMetadataLost, "AddNetwork", text)
	}
}

// changed says that an ADD of the pod with this UID has ended with err, or that it was
// detached.
func (s *claims) changed(podUID string, err error) {
	if s != nil {
		s.driver.Attached(podUID, err)
	}
}

// Swept says that attachments of any pods were removed.
func (c *Cluster) Swept() {
	if c != nil && c.claims != nil {
		c.claims.driver.Refresh()
	}
}

// records is [dra.Config.Records]. In an ADD they are those of its container.
func (s *claims) records(ctx context.Context, podUID string) (all []dra.Record, err error) {
	var records []daemon.Record
	if a := addOf(ctx); a != nil {
		records, _, err = s.cluster.recordsOf(ctx, a.container)
	} else {
		records, err = daemon.OfPod(ctx, podUID, s.cluster.plugin.Dirs()...)
	}
	for _, r := range records {
		all = append(all, dra.Record{Record: r.Record, Detach: func(ctx context.Context, ifname string) error {
			defer s.cluster.recorded(multinet.PodOf(r.Record))
			return s.cluster.plugin.Detach(ctx, r.Dir, r.Key, ifname)
		}})
	}
	return all, err
}

// errNoDRA is returned for a pod whose claims an earlier daemon has prepared.
var errNoDRA = types.NewError(types.ErrTryAgainLater, `its networks need "dra" in the configuration of multinetd: add it, or delete the pod`, "")

// noClaims fails for a pod that has claims, which a daemon without dra cannot attach: the pod must
// not start without its networks.
func (c *Cluster) noClaims(_ context.Context, p nad.Pod) ([]multinet.Claimed, error) {
	prepared, err := dra.Store{Dir: c.conf.ClaimDir}.Pod(p.UID)
	if err != nil || len(prepared) == 0 {
		return nil, err
	}
	return nil, fmt.Errorf("claim %v: %w", prepared[0].Ref, errNoDRA)
}

// warnOfClaims logs that claims are prepared which nobody can release, since there is no dra.
func (c *Cluster) warnOfClaims(ctx context.Context) {
	prepared, damaged, err := dra.Store{Dir: c.conf.ClaimDir}.All()
	if n := len(prepared) + len(damaged); n > 0 || err != nil {
		c.log.LogAttrs(ctx, slog.LevelWarn, `ResourceClaims are prepared, but "dra" is not in the configuration: their pods cannot start, and the kubelet cannot release them`,
			slog.Int("claims", n), slog.String("directory", c.conf.ClaimDir), slog.Any("error", err))
	}
}

// startClaims starts what the configuration says about claims. The caller waits for others.
func (c *Cluster) startClaims(ctx context.Context, others *sync.WaitGroup) error {
	if c.conf.DRA == nil {
		c.warnOfClaims(ctx)
		return nil
	}
	var err error
	if c.claims, err = c.newClaims(); err == nil {
		err = c.claims.start(ctx, others)
	}
	if err != nil {
		return fmt.Errorf("dra: %w", err)
	}
	return nil
}
