package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/metacni/metacni/delegate"
)

type caughtKey struct{}

// untilSignal returns a context that ends with ctx, and with the first signal
// that asks the process to stop. Signals are caught a little later, for that takes the
// runtime some threads and a tenth of a plugin's time: [Exec] waits for it.
// What one ends before that has run nothing, and DEL undoes it.
func untilSignal(ctx context.Context) context.Context {
	caught := make(chan struct{})
	ctx, end := context.WithCancelCause(context.WithValue(ctx, caughtKey{}, caught))
	go func() {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		// A result that nobody reads is an error to undo the ADD for, not our end.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		close(caught)
		signal.Notify(asked, os.Interrupt, syscall.SIGHUP) // what no runtime sends can wait
		end(fmt.Errorf("%s signal received", <-asked))
	}()
	return ctx
}

// Exec runs the plugins of a command once the signals are caught that end it.
type Exec struct{ delegate.Process }

// ExecPlugin is that of [delegate.Process].
func (e *Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if caught, ok := ctx.Value(caughtKey{}).(chan struct{}); ok {
		<-caught
	}
	return e.Process.ExecPlugin(ctx, path, stdin, environ)
}
