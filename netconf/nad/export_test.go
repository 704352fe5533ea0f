package nad

// For the tests that stop a writer of a mirror between two files.
var (
	Files   = files
	TooLong = tooLong
)

// A File is a file of a mirror.
type File = file
