package podresources

import (
	"cmp"
	"context"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The pauses between two requests, and between two attempts to connect: at first, and at most.
const (
	minWait = 20 * time.Millisecond
	maxWait = time.Second
)

// kubelet returns the kubelet's API, over the one connection of c. It does not wait for
// the connection.
func (c *Client) kubelet() (api.PodResourcesListerClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if c.conn == nil {
		conn, err := grpc.NewClient("passthrough:///kubelet",
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", c.socket())
			}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSize)),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: minWait, Multiplier: 2, Jitter: 0.2, MaxDelay: maxWait},
				MinConnectTimeout: maxWait,
			}),
		)
		if err != nil {
			return nil, err
		}
		c.conn = conn
		c.pods, c.served = newShared[*api.ListPodResourcesResponse](), newShared[*api.AllocatableResourcesResponse]()
	}
	return api.NewPodResourcesListerClient(c.conn), nil
}

// asked reports whether c has asked the kubelet before.
func (c *Client) asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

func (c *Client) socket() string { return cmp.Or(c.Socket, defaultSocket) }

func (c *Client) checkpoint() string { return cmp.Or(c.Checkpoint, defaultCheckpoint) }

// Close closes the connection to the kubelet. Calls that wait fail within a second, and so do
// later ones. Closing twice is no error.
func (c *Client) Close() error {
	c.mu.Lock()
	conn := c.conn
	c.conn, c.closed = nil, true
	c.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// passing reports whether the same request may succeed in a moment.
func passing(err error) bool {
	tooLarge := says(err, "larger than max") // gRPC's own: the answer has more than maxSize
	return code(err) == codes.Unavailable || code(err) == codes.ResourceExhausted && !tooLarge
}

func code(err error) codes.Code { return status.Code(err) }

// says reports whether the message of err contains text. Where the kubelet and gRPC have
// one code for several things, only the message tells them apart.
func says(err error, text string) bool { return strings.Contains(status.Convert(err).Message(), text) }
