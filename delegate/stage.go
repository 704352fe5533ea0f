package delegate

import "context"

// A Stage is a part of an operation beside the invocations of plugins.
type Stage string

// The stages of operations. Each is begun by one package.
const (
	StageCommand Stage = "command" // all of a command, in package plugin
	StageQueue   Stage = "queue"   // from the arrival of a request to its turn, in package thick
	StageLock    Stage = "lock"    // the wait for the lock of a container, in package lifecycle
	StageRecord  Stage = "record"  // one write of a record, in package lifecycle
	StageUndo    Stage = "undo"    // the DELs that undo an ADD, in this package
)

// Stages is called when a stage of an operation begins, on the goroutine that goes
// through it. It returns the context for what the stage does, which must be ctx or
// derived from it, and a function that is called with nil or an error when the stage has
// ended; neither may be nil. The context of a command is that of all its other stages and
// invocations, except the queue, which is before it. The context of an undo is that of its
// DELs. The contexts of other stages are not used.
//
// The [Event] is about the whole operation: Plugin is empty, and Network is the
// operation's own. For an undo, Network and IfName are those of the first attachment.
type Stages func(ctx context.Context, s Stage, e Event) (context.Context, func(err error))

// Begin calls s. Without one it returns ctx and a function that does nothing.
func (s Stages) Begin(ctx context.Context, stage Stage, e Event) (context.Context, func(error)) {
	if s == nil {
		return ctx, func(error) {}
	}
	return s(ctx, stage, e)
}
