// Package guest is both ends of the stream between the gateway and the process
// that runs first in every sandbox: Client for the gateway, Main for the guest.
// Users and policy are left to the gateway, where a sandbox runs to its driver.
//
// The guest does the work, since an engine's exec cannot be killed, signalled or
// attached to again: it owns each process that it starts, its pipes or terminal
// and its exit status, and serves files and sockets from the sandbox's own view.
//
// # Connections
//
// The guest dials out, to SocketName in SocketDir, and again with back-off when
// the gateway has gone. The first line on a connection is the guest's hello, a
// JSON object:
//
//	{"sandgate":1,"role":"control","instance":I}
//	{"sandgate":1,"role":"spare","instance":I,"session":S}
//
// sandgate is the version of the protocol; instance is drawn anew by each guest
// process. The control connection is answered by {"sandgate":1,"session":S} and
// carries yamux from then on: the gateway is its client, either side opens
// streams. When it ends, all that belongs to it ends. Spare connections, of which
// the guest keeps a few dialled, carry one stream each, past yamux, which is about
// twice as fast; they are an optimisation that a transport may lack.
//
// A sandbox may stand still for any time between two instructions, and its connections
// be gone when it goes on, also that of a copy of it: nothing in the guest counts on
// an end being announced. A driver that has cut them while the guest ran on tells it by
// SIGUSR1 to dial again.
//
// Where no folder can be shared with the sandbox, the folder is the sandbox's own
// and `guest connect` listens in it, run by the driver in the sandbox: it says
// "connected" and a line feed when the guest has connected, and from then on its
// standard input and output are the control connection. There are no spare ones.
//
// # Streams
//
// A stream begins with one line, a JSON object (type header), that says what it
// is. The gateway opens:
//
//	exec, shell   start a job; a control stream, see below. With Run: a recorded
//	              one with a terminal
//	attach        a running job's control stream, once more
//	data          the bytes in and out of the job whose control stream names Token
//	sftp          SFTP v3, for reading only if Reads, then raw
//	dial          connect from inside the sandbox; a reply line, then raw
//	listen        listen inside the sandbox; a reply line; ends with the stream
//	jobs          lines, one for each job
//	run           start a recorded job, see below; a reply line with the job
//	look          a reply line with the job of that id or name
//	wait          the same, once the job has ended
//	log           a recorded job's output, in frames
//	input         bytes for a recorded job's standard input; a reply line
//	kill          signal a job, or end it with all that it started; a reply line
//	serve         keep these commands running, and no others; a reply line
//	forget        delete an ended job's record and log; a reply line
//	tool          call a tool that works on files, see below
//	abort         the stream numbered Stream is to be torn down both ways
//
// and the guest opens:
//
//	accept        a connection came in on the listener named Token, then raw
//	abort         as above
//
// Anything else ends the connection. Byte strings that need not be UTF-8 travel
// as base64 in JSON.
//
// # Jobs
//
// Every command is a job. Its standard input and output travel raw on the data
// stream, each direction ended by itself; a terminal has no other. The control
// stream carries frames of one byte type, four bytes length (big endian) and
// payload, at most maxFrame bytes:
//
//	to the guest       resize (four uint32: columns, rows, pixels), signal (its
//	                   name), hangup (empty: the client has gone for good)
//	to the gateway     started (JSON), stderr (bytes), exit (JSON; the last)
//
// So a stalled input or output never holds up a signal, and each stream has the
// flow control of its transport: a client that does not read blocks the program.
// exit is sent when both outputs have been drained into their streams. A control
// stream that ends without hangup means that the gateway itself has gone: the job
// then goes on, and attach finds it again.
//
// A command may bring files, for secrets: they are written to memory in filesDir
// before it starts, readable by its user alone, and last until the sandbox stops.
//
// # Recorded jobs
//
// A job that is started by run, and a named session, is kept on the sandbox's disk
// as well: what it is and how it ended (JobInfo), for a day after its end, and all
// that it printed. Whoever starts one chooses its id, and may therefore ask again
// when an answer is lost: the same id never starts two jobs.
//
// A log is asked for from a byte offset on, that of all output since the job's
// start, and answered with frames until the end of what there is, or with Follow
// until the job has ended:
//
//	to the gateway     output, stderr (bytes; they follow each other without a
//	                   gap), gap (eight bytes, big endian: the offset at which the
//	                   next piece begins, since what is before was dropped),
//	                   end (JSON, the job; the last)
//
// The guest writes the log whoever reads it, so no reader holds up a job; the first
// 16 MiB and the last 40 to 48 are kept. The job has ended when its first process
// has and what that wrote has been read, whoever else holds its output. Ending one
// (kill without a signal) reaches all that descends from it.
//
// A recorded job's terminal has a screen: an emulator follows what is printed, and
// who attaches is sent what paints the same on a terminal of another history. Any
// number may attach; one of them decides on the size, the last that has typed. One
// that does not read for two seconds misses output, and is painted the screen when it
// reads again.
//
// Services are recorded jobs that the guest starts again when they end, or are not well
// any more, as serve has told it to, until the sandbox stops.
//
// # Tools
//
// A tool stream calls read, write, edit, glob or grep, or one of the two calls of
// package tool that are for the gateway alone. After the header comes one line, the
// arguments, a JSON object of at most maxToolArgs bytes; back comes one line of at
// most maxToolReply:
//
//	{"output":O}   what the tool returned
//	{"error":E}    why it did not, a tool.Error
//
// The gateway ends its direction to cancel the call, which is answered all the same.
// What was read, and may therefore be edited, is remembered for each conversation,
// which the header names, as long as the tools' process lives; the gateway can remind
// it. The tools run in a process of the user's, one for each user, to which the guest
// passes such streams on as they are, with what it alone knows put into the header:
// the folder where commands start. exec is no such tool: the gateway makes it of
// recorded jobs.
//
// # Trust
//
// The gateway treats the guest as a stranger: every line, frame, count and wait
// is bounded, a guest opens only streams that it was asked to open, and nothing
// it sends is ever a path, a word of a shell or SQL on the gateway's side.
package guest
