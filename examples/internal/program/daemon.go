// Package program is what the programs multinet, multinetd and nri have in common: signals,
// waiting, the log, the stderr of plugins, reading records and checking configurations.
package program

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Signals returns a context that also ends with the first SIGTERM, SIGINT or SIGHUP. The
// second one calls again, which ends the process. SIGHUP stays ignored if nohup ignores it.
//
// The process goes on when nobody reads its log any longer: SIGPIPE is caught. It is not
// ignored, because plugins would inherit that.
func Signals(ctx context.Context, again func(os.Signal)) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() { again(second(signals, cancel)) }()
	return ctx
}

// oneSignal is how long several signals count as one: timeout(1) and some service managers
// send one to the process and one to its group.
const oneSignal = time.Second

// second calls end at the first of signals, and returns the second one.
func second(signals <-chan os.Signal, end func()) os.Signal {
	<-signals
	end()
	for first := time.Now(); ; {
		if s := <-signals; time.Since(first) >= oneSignal {
			return s
		}
	}
}

// Pause waits for a time. It reports false if ctx has ended before.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
