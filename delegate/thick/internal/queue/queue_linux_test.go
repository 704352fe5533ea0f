package queue

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/thick/wire"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// away is the try of a shim whose daemon is away.
func away() (bool, error) { return false, nil }

func request(container string) wire.Request {
	return wire.Request{
		Env:    map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/<x>"},
		Config: []byte(`{"cniVersion":"1.1.0","name":"net","type":"multinet","password":"secret & more"}`),
	}
}

func TestPutReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/a/queue"
	r := request("c1")
	r.DeadlineMs, r.APIVersion = 115000, wire.Version
	ok(t, Put(t.Context(), dir, r, away))
	var got []wire.Request
	left, err := Replay(t.Context(), dir, 4, func(_ context.Context, r wire.Request) error {
		got = append(got, r)
		return nil
	})
	ok(t, err)
	r.DeadlineMs = 0
	if diff := cmp.Diff([]wire.Request{r}, got); diff != "" || left != 0 {
		t.Error(left, diff)
	}
}
