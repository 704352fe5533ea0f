package thick

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// Funcs returns a [Handler] for a plugin that is written as the callbacks of a
// main: commands is called for each operation, and the callback it is for.
// Whatever the callbacks do should end with ctx, and what ADD would print go to
// stdout, as a result of any version of the specification; what others write
// there is dropped. A result that cannot be read is an error with code 6, and
// the server has the DEL callback undo it. A callback that is nil is an error
// with code 4. commands is called by many goroutines at once.
func Funcs(commands func(ctx context.Context, stdout io.Writer) skel.CNIFuncs) Handler { //nolint:ireturn // it is what a Server takes
	return funcs(commands)
}

type funcs func(context.Context, io.Writer) skel.CNIFuncs

func (f funcs) Add(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
	var out output
	if err := call("ADD", f(ctx, &out).Add, a); err != nil {
		return nil, err
	}
	return out.result()
}

func (f funcs) Check(ctx context.Context, a *skel.CmdArgs) error {
	return call("CHECK", f(ctx, io.Discard).Check, a)
}

func (f funcs) Del(ctx context.Context, a *skel.CmdArgs) error {
	return call("DEL", f(ctx, io.Discard).Del, a)
}

func (f funcs) GC(ctx context.Context, a *skel.CmdArgs) error {
	return call("GC", f(ctx, io.Discard).GC, a)
}

func (f funcs) Status(ctx context.Context, a *skel.CmdArgs) error {
	return call("STATUS", f(ctx, io.Discard).Status, a)
}

func call(command string, callback func(*skel.CmdArgs) error, a *skel.CmdArgs) error {
	if callback == nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the plugin has no "+command, "")
	}
	return callback(a)
}

var (
	errTooLong = fmt.Errorf("it has more than %d bytes", wire.MaxBody)
	errEmpty   = errors.New("there is none")
)

// output keeps what an ADD prints, but no more than could be sent. That it is
// too long the plugin is not told: it might fail, without undoing what it did.
type output struct {
	buf bytes.Buffer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if o.buf.Len()+len(p) > wire.MaxBody {
		o.err = errTooLong
	}
	if o.err == nil {
		o.buf.Write(p)
	}
	return len(p), nil
}

// result decodes what was printed.
func (o *output) result() (types.Result, error) {
	text := bytes.Trim(o.buf.Bytes(), " \t\r\n")
	switch {
	case o.err != nil:
		return nil, &resultError{o.err}
	case len(text) == 0 || string(text) == "null":
		return nil, &resultError{errEmpty}
	}
	r, err := create.CreateFromBytes(text)
	if err != nil {
		return nil, &resultError{err}
	}
	r, err = r.GetAsVersion(types100.ImplementedSpecVersion)
	if err != nil {
		return nil, &resultError{err}
	}
	return r, nil
}
