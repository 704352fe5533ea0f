package podresources_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

func TestACheckpointIsARegularFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	nodetest.OK(t, syscall.Mkfifo(fifo, 0o600))
	c := &podresources.Client{Socket: filepath.Join(dir, "none"), Checkpoint: fifo}
	if _, err := c.Devices(t.Context(), web); status.Code(err) != 11 || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}
