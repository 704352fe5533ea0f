package plugin

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A process ends some time after a signal although a step of its plugin hangs.
func TestProcessEndsAlthoughAStepHangs(t *testing.T) {
	t.Parallel()
	const self = "METACNI_TEST_HANGS"
	if os.Getenv(self) != "" {
		ctx := untilSignal(context.Background(), time.Millisecond)
		_, _ = os.Stdout.WriteString("ready\n")
		<-ctx.Done()
		select {}
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$") //nolint:gosec // this program
	c.Env = append(os.Environ(), self+"=1")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("ready\n"))
	if n, err := out.Read(line); !bytes.HasPrefix([]byte("ready\n"), line[:n]) || n == 0 {
		t.Errorf("printed %q, %v", line[:n], err)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); c.ProcessState.ExitCode() != 1 {
		t.Errorf("it ends with %v", err)
	}
}
