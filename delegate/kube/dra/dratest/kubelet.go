// Package dratest is a kubelet for tests of what serves ResourceClaims: it registers a driver
// and has claims prepared and released.
package dratest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// A Kubelet calls one driver. Like a real one it has each claim prepared once, also if several pods
// have it, and again after a restart: that is another Register. Goroutines may share it. Close it.
type Kubelet struct {
	// Endpoint is the path of the driver's socket, as the driver has said it.
	Endpoint string

	conn     *grpc.ClientConn
	prepared sync.Map // the answers, by UIDs
}

// Register registers the driver that has this socket in the directory of the kubelet's plugin
// watcher, as the kubelet does. root is the root directory of the kubelet as the caller sees it.
// It fails if nobody listens, and for an answer that no kubelet takes.
func Register(ctx context.Context, socket, root string) (*Kubelet, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := registration.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return nil, err
	}
	if info.GetType() != registration.DRAPlugin || !slices.Contains(info.GetSupportedVersions(), api.DRAPluginService) {
		return nil, fmt.Errorf("registered as %v", info)
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		return nil, err
	}
	driver, err := dial(filepath.Join(root, info.GetEndpoint()))
	return &Kubelet{Endpoint: info.GetEndpoint(), conn: driver}, err
}

// Close closes the connection.
func (k *Kubelet) Close() error { return k.conn.Close() }

// A Prepared is what the driver answers for a claim.
type Prepared struct {
	Devices []*api.Device
	Err     error
}

// Prepare has claims prepared that are not. It returns the answers by the UID of the claim. It fails
// if there is none for one of them.
func (k *Kubelet) Prepare(ctx context.Context, claims ...*resourcev1.ResourceClaim) (map[string]Prepared, error) {
	all := map[string]Prepared{}
	claims = slices.DeleteFunc(slices.Clone(claims), func(c *resourcev1.ResourceClaim) bool {
		before, _ := k.prepared.Load(string(c.UID))
		p, ok := before.(Prepared)
		if ok {
			all[string(c.UID)] = p
		}
		return ok
	})
	if len(claims) == 0 {
		return all, nil
	}
	answer, err := api.NewDRAPluginClient(k.conn).NodePrepareResources(ctx, &api.NodePrepareResourcesRequest{Claims: ids(claims)})
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		a := answer.GetClaims()[string(c.UID)]
		if a == nil {
			return nil, fmt.Errorf("no answer for claim %s", c.Name)
		}
		p := Prepared{Devices: a.GetDevices()}
		if text := a.GetError(); text != "" {
			p = Prepared{Err: errors.New(text)}
		} else {
			k.prepared.Store(string(c.UID), p)
		}
		all[string(c.UID)] = p
	}
	return all, nil
}

// Unprepare has claims released. It returns the joined errors of those that were not.
func (k *Kubelet) Unprepare(ctx context.Context, claims ...*resourcev1.ResourceClaim) error {
	answer, err := api.NewDRAPluginClient(k.conn).NodeUnprepareResources(ctx, &api.NodeUnprepareResourcesRequest{Claims: ids(claims)})
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range claims {
		a := answer.GetClaims()[string(c.UID)]
		switch {
		case a == nil:
			errs = append(errs, fmt.Errorf("no answer for claim %s", c.Name))
		case a.GetError() != "":
			errs = append(errs, errors.New(a.GetError()))
		default:
			k.prepared.Delete(string(c.UID))
		}
	}
	return errors.Join(errs...)
}

func ids(claims []*resourcev1.ResourceClaim) []*api.Claim {
	var all []*api.Claim
	for _, c := range claims {
		all = append(all, &api.Claim{Namespace: c.Namespace, Uid: string(c.UID), Name: c.Name})
	}
	return all
}

// dial returns a connection to a socket.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
