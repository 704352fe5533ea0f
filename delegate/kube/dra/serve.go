package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// socketInterval is the time between two looks at the sockets.
const socketInterval = time.Second

// A service is what the kubelet calls: the helper and its sockets, as long as these are there.
type service struct {
	helper    *kubeletplugin.Helper
	sockets   []*socket
	err       error // why the kubelet does not reach the helper
	published *resourceslice.DriverResources
}

// serve starts the helper, in place of one whose sockets are lost. The caller holds d.serving.
func (d *Driver) serve(ctx context.Context) error {
	options, dir, err := d.config.options(d.client)
	if err != nil {
		return err
	}
	var sockets []*socket
	listenAt := func(path string) (net.Listener, error) {
		s, err := listen(ctx, path)
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, s)
		return s, nil
	}
	options = append(options,
		kubeletplugin.PluginListener(func(_ context.Context, path string) (net.Listener, error) {
			return listenAt(filepath.Join(dir, filepath.Base(path)))
		}),
		kubeletplugin.RegistrarListener(func(_ context.Context, path string) (net.Listener, error) { return listenAt(path) }),
		kubeletplugin.GRPCInterceptor(d.intercept),
	)
	d.service.helper.Stop()
	d.service.helper = nil
	helper, err := kubeletplugin.Start(ctx, plugin{d}, options...)
	if err != nil {
		return err
	}
	d.service.helper, d.service.sockets = helper, sockets
	if d.service.published != nil {
		return helper.PublishResources(ctx, *d.service.published)
	}
	return nil
}

// intercept handles a request of the kubelet, unless the Driver has stopped. It logs what the
// kubelet says of the registration.
func (d *Driver) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) { //nolint:ireturn // as gRPC has it
	d.requests.RLock()
	defer d.requests.RUnlock()
	if d.stopped {
		return nil, errors.New("the DRA driver has ended")
	}
	switch status, ok := request.(*registration.RegistrationStatus); {
	case !ok:
	case status.GetPluginRegistered():
		d.log.InfoContext(ctx, "the kubelet has registered the DRA driver", "driver", d.config.Name)
	default:
		d.log.ErrorContext(ctx, "the kubelet refuses the DRA driver", "driver", d.config.Name, "error", status.GetError())
	}
	return handle(ctx, request)
}

// keepServing starts the helper again until ctx ends, whenever the kubelet has lost it: a
// kubelet that is installed again makes its directories again, without the sockets in them.
func (d *Driver) keepServing(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, socketInterval, false, func(ctx context.Context) (bool, error) {
		d.serveIfLost(ctx)
		return false, nil // for ever
	})
}

// serveIfLost starts the helper if the kubelet does not reach one.
func (d *Driver) serveIfLost(ctx context.Context) {
	d.serving.Lock()
	defer d.serving.Unlock()
	var broken error
	select {
	case broken = <-d.broken:
	default:
	}
	err := d.service.look(broken)
	if errors.Is(err, errLost) {
		err = d.serve(ctx)
	}
	if err != nil && ctx.Err() == nil && (d.service.err == nil || err.Error() != d.service.err.Error()) {
		d.log.WarnContext(ctx, "the kubelet does not reach the DRA driver", "error", err)
	}
	d.service.err = err
}

var (
	errLost  = errors.New("the kubelet has lost the driver")
	errTaken = errors.New("another process has this socket: only one driver of a name can serve a node")
)

// look returns why the kubelet does not reach the helper. broken is what the helper has said.
// The error is errLost if another helper can help.
func (s *service) look(broken error) error {
	switch {
	case broken != nil:
		return fmt.Errorf("%w: %w", errLost, broken)
	case s.helper == nil: // the last attempt to start one has failed
		return errLost
	}
	for _, socket := range s.sockets {
		if err := socket.there(); err != nil {
			return err
		}
	}
	return nil
}

// Err returns why the kubelet does not reach the Driver, or nil. The Driver makes lost sockets
// again within seconds, unless another process has taken their place.
func (d *Driver) Err() error {
	if d == nil {
		return nil
	}
	d.serving.Lock()
	defer d.serving.Unlock()
	return d.service.err
}

// A socket is a listener. Others may remove its file, or take its place: a daemon starts before
// the last one has ended.
type socket struct {
	net.Listener
	path string
	file fs.FileInfo
}

// listen listens at a path, in place of a process that has ended.
func listen(ctx context.Context, path string) (*socket, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if unix, ok := l.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socket{Listener: l, path: path, file: file}, nil
}

// there fails if the file of s is not there. The file of another process is errTaken.
func (s *socket) there() error {
	file, err := os.Lstat(s.path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errLost, err)
	case !os.SameFile(file, s.file):
		return fmt.Errorf("%s: %w", s.path, errTaken)
	}
	return nil
}

// Close ends s, and removes its file unless that is another one's.
func (s *socket) Close() error {
	var err error
	if s.there() == nil {
		err = os.Remove(s.path)
	}
	return errors.Join(err, s.Listener.Close())
}
