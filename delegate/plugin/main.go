package plugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

// OfProcess returns a System with the environment and the standard streams of
// this operating system process.
func OfProcess() System {
	return System{Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}

// Version returns the version of the main module of this program, such as
// "v1.2.0", or "(devel)" if it is not known.
func Version() string {
	if built, ok := debug.ReadBuildInfo(); ok && built.Main.Version != "" {
		return built.Main.Version
	}
	return "(devel)"
}

// Main runs p with [Plugin.Run] and the [OfProcess] System, and exits with status
// 1 if that fails. The first SIGTERM, SIGINT or SIGHUP ends the context of the
// command; an ADD is then undone, also if it waits for somebody to read its result. If
// the command has not ended after 10 seconds, Main exits: a [Step] hangs. If
// nobody can read the result, writing it is an error: the process is not killed by
// SIGPIPE. VERSION, which leaves nothing to undo, ends at these signals at once.
//
// A program that does nothing else starts a tenth faster with the line
//
//	//go:debug updatemaxprocs=0
//
// before its package clause: Go then does not start to look for changes of the
// CPU limit, which takes a thread.
func Main(p Plugin) {
	ctx := context.Background()
	if os.Getenv("CNI_COMMAND") != "VERSION" {
		ctx = untilSignal(ctx, stuckTimeout)
	}
	system := OfProcess()
	system.alone = true
	if p.Run(ctx, system) != nil {
		os.Exit(1)
	}
}

// stuckTimeout is longer than delegated plugins and undoing take to end after a signal.
const stuckTimeout = 10 * time.Second

// untilSignal returns a context that ends with ctx, or at the first signal that asks the
// process to stop. The signals are caught until the process exits, which it does when limit
// has passed: a step, which nobody else can kill, does not end.
func untilSignal(ctx context.Context, limit time.Duration) context.Context {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		end(fmt.Errorf("%s signal received", <-asked))
		time.Sleep(limit)
		os.Exit(1)
	}()
	return ctx
}
